"""The curriculum of a run, and the samples and tokens of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neox_core.contracts.curriculum import CurriculumShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import Samples
    from neox_core.plan.runfile import ComponentRef, RunPlan


def build_curriculum(plan: RunPlan) -> Curriculum | None:
    """The curriculum of a plan; None where every step reads whole samples in order. Raises DataError for unreadable
    files.
    """
    if plan.curriculum is None:
        return None
    curriculum: Curriculum = plan.curriculum.make(
        CurriculumShape(plan.model.num_layers, plan.model.seq_length, plan.batch.train_batch, plan.train.train_iters)
    )
    for step in (0, plan.train.train_iters - 1):
        with plan.curriculum.blamed():
            length, kept = curriculum.sequence_length(step), curriculum.kept_tokens(step)
        whole = isinstance(length, int | np.integer) and isinstance(kept, int | np.integer)
        if not whole or not 1 <= length <= plan.model.seq_length:
            raise plan.curriculum.fault(f"step {step} reads {length!r} tokens of a sample, its layers {kept!r}")
    return curriculum


def tokens_of_steps(plan: RunPlan, curriculum: Curriculum | None) -> Callable[[int], int]:
    """Tokens that all ranks together read in a step, by its number, counted from 0."""
    if curriculum is None:
        return lambda step: plan.batch.train_batch * plan.model.seq_length
    return lambda step: plan.batch.train_batch * curriculum.sequence_length(step)


class ChosenSamples:
    """Of the samples of one pass, those that a curriculum chooses, by the index of the run; itself `Samples`."""

    def __init__(self, samples: Samples, curriculum: Curriculum, per_step: int, reference: ComponentRef | None) -> None:
        self.notes = samples.notes
        self._all, self._curriculum, self._per_step, self._reference = samples, curriculum, per_step, reference
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        self._all.read(int(self._chosen(np.array([index]))[0]), into)

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._all.identify(self._chosen(indices))

    def in_words(self) -> Sequence[str]:
        return self._all.in_words()

    def _chosen(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n] -> int64 [n]."""
        chosen = np.empty_like(indices)
        steps = indices // self._per_step
        for step in np.unique(steps).tolist():
            mine = steps == step
            chosen[mine] = self._of_step(step)[indices[mine] % self._per_step]
        return chosen

    def _of_step(self, step: int) -> NDArray[np.int64]:
        if self._last is None or self._last[0] != step:
            pool = len(self._all)
            chosen = self._curriculum.samples(step, pool)
            whole = isinstance(chosen, np.ndarray) and chosen.shape == (self._per_step,) and chosen.dtype.kind in "iu"
            if self._reference is not None and not (whole and chosen.min() >= 0 and chosen.max() < pool):
                raise self._reference.fault(
                    f"its samples of step {step} are not {self._per_step} whole numbers below {pool}"
                )
            self._last = step, chosen
        return self._last[1]
