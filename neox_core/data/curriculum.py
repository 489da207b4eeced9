"""The curriculum of a run, and the tokens of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from neox_core.contracts.curriculum import CurriculumShape

if TYPE_CHECKING:
    from neox_core.contracts import Curriculum
    from neox_core.plan.runfile import RunPlan


def build_curriculum(plan: RunPlan) -> Curriculum | None:
    """The curriculum of a plan; None where steps read whole samples in order. Raises DataError for unreadable files."""
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
        before = plan.batch.samples_before
        return lambda step: (before(step + 1) - before(step)) * plan.model.seq_length
    return lambda step: plan.batch.train_batch * curriculum.sequence_length(step)
