"""The check of a curriculum: each method is a function of the step alone."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import clauses, has, hold, not_applicable
from neox_author.testing.plugins import build
from neox_core.contracts.curriculum import CurriculumShape

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

SHAPE = CurriculumShape(num_layers=4, seq_length=64, train_batch=8, train_iters=50)
POOL = 200


@clauses
def check_curriculum(catalog: Catalog, name: str, **settings: Any) -> None:
    """The clauses of contracts.Curriculum. Raises AssertionError with the one that does not hold."""
    import numpy as np

    entry = catalog.find("curriculum", name)
    target, built, seeds = entry.load(), build(entry, **settings), count()
    hold(hasattr(built, "enabled") or settings, "its settings have `enabled`, which switches it on")

    def make() -> Any:
        np.random.seed(next(seeds))  # as another process has it
        return target(SHAPE, built)

    made, again = make(), make()
    has(made, "a curriculum", "sequence_length", "kept_tokens", "samples")
    workers, routed = made.num_workers, made.routed_layers
    hold(workers is None or (isinstance(workers, int) and workers >= 0), "`num_workers` is a number or None")
    hold(isinstance(made.chooses, bool), "`chooses` is True or False")
    hold(isinstance(routed, frozenset) and routed <= {*range(SHAPE.num_layers)}, "`routed_layers` are layers, from 0")
    hold(isinstance(made.seed, int), "`seed` is a whole number")
    steps = range(SHAPE.train_iters)
    lengths = [made.sequence_length(step) for step in steps]
    right = all(isinstance(each, int) and 1 <= each <= SHAPE.seq_length for each in lengths)
    hold(right, f"sequence_length() is from 1 to seq_length; {sorted({*lengths})[:3]}")
    kept = [made.kept_tokens(step) for step in steps]
    hold(all(isinstance(each, int) and each >= 1 for each in kept), "kept_tokens() is 1 or more")
    whole = [made.samples(step, POOL) for step in steps] if made.chooses else []
    if not made.chooses:
        not_applicable("samples() gives int64 [train_batch], each below `pool`", "`chooses` is False")
    for step, ids in enumerate(whole):
        form = isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.shape == (SHAPE.train_batch,)
        within = form and ids.min() >= 0 and ids.max() < POOL
        hold(within, f"samples() gives int64 [train_batch], each below `pool`; not so at step {step}")
    clause = "each method is a function of the step: the same in another process, in any order"
    hold([again.sequence_length(step) for step in steps[::-1]][::-1] == lengths, f"{clause}; not sequence_length()")
    hold([again.kept_tokens(step) for step in steps[::-1]][::-1] == kept, f"{clause}; not kept_tokens()")
    for step in steps[::-7] if made.chooses else ():
        hold(np.array_equal(again.samples(step, POOL), whole[step]), f"{clause}; not samples()")
