"""The curriculum of a run, and what its steps read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from neox_core.contracts.curriculum import CurriculumShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import Curriculum
    from neox_core.plan.runfile import RunPlan


def build_curriculum(plan: RunPlan) -> Curriculum | None:
    """None where every step reads whole samples in order. Raises DataError for files that it cannot read."""
    if plan.curriculum is None:
        return None
    curriculum: Curriculum = plan.curriculum.make(
        CurriculumShape(plan.model.num_layers, plan.model.seq_length, plan.batch.train_batch, plan.train.train_iters)
    )
    return curriculum


def tokens_of_steps(plan: RunPlan, curriculum: Curriculum | None) -> Callable[[int], int]:
    """Tokens that all ranks together read in a step, by its number counted from 0."""
    if curriculum is None:
        return lambda step: plan.batch.train_batch * plan.model.seq_length
    return lambda step: plan.batch.train_batch * curriculum.sequence_length(step)


class Chosen:
    """Which samples, of the `pool` that there are, a run reads at each index of its own order."""

    def __init__(self, curriculum: Curriculum, per_step: int, pool: int) -> None:
        self._curriculum, self._per_step, self._pool = curriculum, per_step, pool
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n] -> int64 [n]."""
        chosen = np.empty_like(indices)
        steps = indices // self._per_step
        for step in np.unique(steps).tolist():
            mine = steps == step
            chosen[mine] = self._samples(step)[indices[mine] % self._per_step]
        return chosen

    def _samples(self, step: int) -> NDArray[np.int64]:
        if self._last is None or self._last[0] != step:
            self._last = step, self._curriculum.samples(step, self._pool)
        return self._last[1]
