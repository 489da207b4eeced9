"""Which tokens each layer of a run's model sees: what `neox config show --attention` draws, for a stored plan."""

from __future__ import annotations

import json
import resource
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from neox_core.errors import NeoxError
from neox_core.hooks.component import load_path
from neox_core.interpreter import python
from neox_core.plan.runfile import to_plain
from neox_core.plan.stored.installed import stored_plan
from neox_core.plan.stored.saved import RUN
from neox_core.terminal import cut, printable
from neox_core.untrusted import short

SECONDS = 60
MOST_BYTES = 8 << 30
"""Limit of the address space of the process that draws, torch included."""
LONGEST = 200_000


def attention_of(folder: Path) -> str:
    """The drawing in characters, or one line that says why there is none."""
    try:
        plan = stored_plan(folder / RUN)
        picture = load_path(plan.architecture.planner or "").picture if plan.architecture.planner else ""
        if not picture:
            return f"the architecture {short(plan.architecture.name)} draws none"
        return _drawn(picture, json.dumps({"model": to_plain(plan)["model"], "seed": plan.train.seed, "out": None}))
    except NeoxError as error:
        return f"cannot be drawn: {short(error.message)}"


@lru_cache(maxsize=64)
def _drawn(module: str, arguments: str) -> str:
    """In a process of its own, which imports torch, and whose memory and time are limited: the plan may ask for any."""
    if len(arguments) > 100_000:
        return "cannot be drawn: the model's plan is too long"
    process = subprocess.Popen(
        python(module, arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with suppress(OSError, AttributeError):  # it has ended; not on Linux
        resource.prlimit(process.pid, resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        out, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"was not drawn within {SECONDS} s"
    if process.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return f"cannot be drawn: {short(lines[-1])}"
    return cut(printable(out.decode(errors="replace")), LONGEST).rstrip()
