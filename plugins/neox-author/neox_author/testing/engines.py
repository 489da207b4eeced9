"""The check of an engine: it trains a small model alone, on data, tensor and pipeline ranks, and resumes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from neox_author.testing.clauses import check_light, clauses, hold, not_applicable
from neox_author.testing.resolved import completed, resolve, why_refused
from neox_author.testing.two_ranks import import_for_ranks, on_ranks
from neox_core.contracts.engine import Sharding
from neox_core.errors import ConfigError
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import PrecisionPlan, RunPlan, digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_core.hooks.catalog import Catalog
    from neox_core.plan.resolve import Resolved

SAMPLES = 8
KEYS: Mapping[str, Any] = {
    "train_batch_size": SAMPLES,
    "gradient_clipping": 0.3,
    "weight_decay": 0.1,
    "on_nonfinite_loss": "skip",
}
LAYOUTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("two data-parallel ranks", 2, {}),
    ("ZeRO 1 on two ranks", 2, {"zero_optimization": {"stage": 1}}),
    ("ZeRO 2 on two ranks", 2, {"zero_optimization": {"stage": 2}}),
    ("ZeRO 3 on two ranks", 2, {"zero_optimization": {"stage": 3}}),
    ("TP 2", 2, {"model_parallel_size": 2}),
    ("PP 2", 2, {"pipe_parallel_size": 2}),
    ("TP 2 x PP 2", 4, {"model_parallel_size": 2, "pipe_parallel_size": 2}),
)
SPREAD = "a weight spread over two data-parallel ranks"


@clauses
def check_engine(catalog: Catalog, name: str, **keys: Any) -> None:
    """The clauses of contracts.Engine, its maker and planner. Raises AssertionError with the one that does not hold,
    the layout, and the first tensor that differs.

    Ranks are processes that are forked from this one. keys: of a config, with `_`.
    """
    entry = catalog.find("engine", name)
    check_light(entry.require_planner())
    check_light(entry.component.target)
    with tempfile.TemporaryDirectory() as folder:
        ask = partial(resolve, completed(catalog), "engine", name, Path(folder))
        resolved = ask(**KEYS, **keys)
        _check_planner(resolved)
        tried = Tried(resolved.plan, Path(folder))
        import_for_ranks(tried.maker().libraries)
        from neox_author.testing import engine_clauses  # imports torch

        wide = ask(**KEYS, **keys, train_micro_batch_size_per_gpu=4)
        clause = "it trains as a plain loop does"
        (alone,) = on_ranks(1, lambda *_: engine_clauses.check_alone(tried, evolve(tried, plan=wide.plan)), clause)
        for layout, ranks, more in LAYOUTS:
            clause = f"{layout} trains as one rank"
            other = _other(clause, ask, ranks, {**KEYS, **keys, **more})
            if other is not None:
                shaped = Tried(other.plan, Path(folder), layout)
                on_ranks(ranks, lambda *_, shaped=shaped: engine_clauses.check_layout(shaped, alone), clause)
        clause = f"{SPREAD} trains as one rank"
        if not getattr(load_path(entry.require_planner()), "spreads", False):
            not_applicable(clause, "the planner does not say `spreads`")
            return
        shaped = Tried(ask(ranks=2, **KEYS, **keys).plan, Path(folder), SPREAD)
        on_ranks(2, lambda *_: engine_clauses.check_layout(shaped, alone, spreads=True), clause)


@frozen
class Tried:
    """An engine in a layout. layout: "" for one rank."""

    plan: RunPlan
    folder: Path
    layout: str = ""

    def maker(self) -> Any:
        """The engine maker of the plan."""
        return self.plan.engine_component.load()[0](self.plan)

    def saving(self, load: str | None = None) -> Tried:
        """The same, with checkpoints in a folder of the layout. load: the layout whose last one is loaded."""
        kept = evolve(
            self.plan.checkpoint,
            save=self.place(self.layout + ("" if load is None else f" from {load}")),
            load=None if load is None else self.place(load),
        )
        return evolve(self, plan=evolve(self.plan, checkpoint=kept))

    def place(self, layout: str) -> str:
        return str(self.folder / (layout or "alone"))


def _other(clause: str, ask: Callable[..., Resolved], ranks: int, keys: dict[str, Any]) -> Resolved | None:
    try:
        return ask(ranks=ranks, **keys)
    except ConfigError as error:
        not_applicable(clause, why_refused(error))
        return None


def _check_planner(resolved: Resolved) -> None:
    plan, config = resolved.plan, resolved.config
    planner = load_path(plan.engine_component.planner or "")
    hold(isinstance(planner.sharding(config), Sharding), "sharding() gives a Sharding")
    hold(isinstance(planner.precision(config), PrecisionPlan), "precision() gives a PrecisionPlan")
    hold(len(digest(plan)) == 64, "plan() gives what JSON holds")
    hold(isinstance(planner.recomputes, bool), "`recomputes` is True or False")
    for path in _paths(plan.engine):
        key = planner.key_of(config, path)
        hold(key is None or isinstance(key, str), f"key_of() gives a key or None; of {path} it gives {key!r}")
    if resolved.memory is not None:
        said = resolved.memory.in_words()
        hold(isinstance(said, str) and bool(said), "memory() tells what a rank holds, in words")
        counted = (resolved.memory.total, resolved.memory.activations)
        hold(all(isinstance(each, int) for each in counted), "memory() tells `total` and `activations`, in bytes")


def _paths(values: Any, at: str = "") -> list[str]:
    if not isinstance(values, dict):
        return [at]
    return [each for key, inner in values.items() for each in _paths(inner, f"{at}.{key}" if at else str(key))]
