"""The check of a monitor against `neox_core.contracts.Monitor`."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import clauses, has, hold
from neox_author.testing.plugins import build
from neox_core.contracts.host import Monitor, RunInfo

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

STEP = {  # what every log step has, see docs/monitors.md
    "loss": 6.25,
    "lr": 1e-3,
    "grad_norm": 1.5,
    "tokens_per_s": 1e6,
    "step_s": 0.25,
    "data_wait_s": 0.0,
    "data_hash": float(2**48 - 1),
    "memory_gib": 0.5,
    "skipped_steps": 0.0,
}
LOGGED: tuple[tuple[int, dict[str, float]], ...] = (
    (1, {"startup_total_s": 2.5}),
    (10, STEP),
    (20, {**STEP, "loss": math.nan, "grad_norm": math.inf, "a_value_that_no_version_had": 0.0}),
    (20, {"valid_loss": 5.5, "valid_perplexity": 245.0}),
)


@clauses
def check_monitor(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `contracts.Monitor` that the monitor breaks.

    It is asked for a run, and for a second one in the same folder that resumes the first.
    """
    entry = catalog.find("monitor", name)
    target, built = entry.load(), build(entry, **settings)
    with tempfile.TemporaryDirectory() as folder:
        for first_step in (0, 20):
            info = RunInfo(Path(folder), first_step, 30, 1000, 2, 64, "cpu", 4)
            monitor = _try(f"it can be made for a run from step {first_step}", target, info, built)
            _use(monitor, first_step)


def _use(monitor: Monitor, first_step: int) -> None:
    has(monitor, "a monitor", "log", "say", "close")
    for step, values in LOGGED:
        given = dict(values)
        _try(
            f"log() takes what a step says, and values unheard of: {values}",
            monitor.log,
            first_step + step,
            given,
        )
        hold(repr(given) == repr(values), "log() leaves the values as they are: other monitors get them too")
    for message in ("saved checkpoints/step-00000010", "two\nlines, caf\u00e9"):
        _try(f"say() takes any text: {message!r}", monitor.say, message)
    _try("it can be closed", monitor.close)


def _try(clause: str, call: Any, *arguments: Any) -> Any:
    try:
        made = call(*arguments)
    except Exception as error:
        raise AssertionError(f"{clause}; it raises {error!r}") from error
    hold(True, clause)
    return made
