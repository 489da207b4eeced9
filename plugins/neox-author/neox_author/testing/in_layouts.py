"""A component in a small model, in the layouts of a run: what shows only among other layers, ranks and steps."""

from __future__ import annotations

import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.architectures import Tried, check_layouts, enlarged
from neox_author.testing.clauses import hold, not_applicable
from neox_author.testing.engine_clauses import check_layout, train_alone
from neox_author.testing.engines import KEYS
from neox_author.testing.engines import Tried as Shaped
from neox_author.testing.model_clauses import check_recomputed
from neox_author.testing.resolved import completed, resolve, why_refused
from neox_author.testing.two_ranks import import_for_ranks, on_ranks
from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry

ENGINE, LIBRARY = "neox-deepspeed:deepspeed", "deepspeed"
"""The engine with all stages of ZeRO, and what it needs."""
LAYOUTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("two data-parallel ranks", 2, {}),
    ("ZeRO 1 on two ranks", 2, {"zero_optimization": {"stage": 1}}),
    ("ZeRO 2 on two ranks", 2, {"zero_optimization": {"stage": 2}}),
    ("ZeRO 3 on two ranks", 2, {"zero_optimization": {"stage": 3}}),
    ("PP 2", 2, {"pipe_parallel_size": 2}),
    ("TP 2 x PP 2", 4, {"model_parallel_size": 2, "pipe_parallel_size": 2}),
)


def check_in_layouts(
    catalog: Catalog, kind: str, name: str, *, passes: bool = True, trained: bool = False, **keys: Any
) -> None:
    """Raises AssertionError naming the layout in which a small model does not compute what one rank does, and the first
    tensor that differs. A layout that rules refuse is not applicable.

    kind, name: as of `resolve`
    passes: compare loss and gradients in float64 under recomputation, tensor parallelism and pipelines, in one process
    trained: train with DeepSpeed on one rank and in each of LAYOUTS, resumed there to the bit, and from the checkpoint
    of one rank; ranks are processes, which takes half a minute
    keys: of a config, with `_`, that choose a part of the model, and settings
    """
    with tempfile.TemporaryDirectory() as folder:
        ask = partial(resolve, completed(catalog), kind, name, Path(folder))
        try:
            tried = Tried(ask, keys, ask(**keys))
        except ConfigError as error:
            not_applicable("it computes the same in each layout", why_refused(error))
            return
        if passes:
            first = tried.build()
            weights = enlarged(first)
            whole = tried.build(weights=weights)
            recomputed = tried.other("it computes the same with recomputation", checkpoint_activations=True)
            if recomputed is not None:
                check_recomputed(whole, recomputed.build(weights=weights))
            check_layouts(tried, weights, first, whole)
        if trained and find_spec(LIBRARY) is None:
            not_applicable("it trains in each layout as on one rank", f"{LIBRARY} is not installed")
        elif trained:
            _check_trained(tried, Path(folder))


def whole_name(entry: Entry) -> str:
    """The component by its whole name, as a config may write it."""
    return f"{entry.plugin.id}:{entry.component.name}"


def _check_trained(tried: Tried, folder: Path) -> None:
    engine: dict[str, Any] = {**KEYS, "engine": ENGINE}
    alone = tried.other("it trains on one rank", **engine)
    if alone is None:
        return
    by = Shaped(alone.resolved.plan, folder)
    import_for_ranks(by.maker().libraries)
    (found,) = on_ranks(1, lambda *_: train_alone(by), "it trains on one rank")
    for layout, ranks, more in LAYOUTS:
        clause = f"{layout} trains as one rank"
        other = tried.other(clause, ranks=ranks, **engine, **more)
        if other is not None:
            shaped = Shaped(other.resolved.plan, folder, layout)
            on_ranks(ranks, lambda *_, shaped=shaped: check_layout(shaped, found), clause)
            hold(True, clause)
