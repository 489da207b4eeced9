"""Difficulty and length by step, as DeepSpeed's CurriculumScheduler and RandomLTDScheduler have them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_curriculum.settings import Metric, RandomLtdSchedule, SeqlenBlock

    Schedule = Callable[[int], int]
    """Step, counted from 0, to a number that never falls."""


def difficulty(terms: Metric | SeqlenBlock) -> Schedule:
    """The highest difficulty of each step. DeepSpeed counts the first step as 1."""
    low, high, config = terms.min_difficulty or 0, terms.max_difficulty or 0, terms.schedule_config
    if terms.schedule_type == "fixed_discrete":
        levels, ends = config.difficulty or (high,), config.max_step or ()
        return lambda step: levels[sum(step + 1 > end for end in ends)]
    total, grain = config.total_curriculum_step or 1, config.difficulty_step or 1
    degree = (config.root_degree or 1) if terms.schedule_type == "fixed_root" else 1
    floor = -(-low // grain) * grain  # the first multiple at or above the lowest

    def at(step: int) -> int:
        return min(max(_multiple((step + 1) / total, degree, low, high, grain), floor), high)

    return at


def kept(terms: RandomLtdSchedule) -> Schedule:
    """The tokens kept at each step. DeepSpeed counts the first step as 0."""
    low, high, config = terms.min_value or 1, terms.max_value or 1, terms.schedule_config
    total, grain = config.require_steps or 1, config.seq_per_step or 1
    return lambda step: min(_multiple(step / total, 1, low, high, grain), high)


def _multiple(share: float, degree: int, low: int, high: int, grain: int) -> int:
    value: int = math.floor(share ** (1.0 / degree) * (high - low) + low)
    return value - value % grain
