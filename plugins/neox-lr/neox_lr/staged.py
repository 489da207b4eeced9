"""Schedules that GPT-NeoX does not have: warm-up, stable and decay; the inverse square root; a list of stages."""

import math
from collections.abc import Callable, Mapping
from itertools import accumulate

from neox_core.contracts.optim import LRSchedule, ScheduleShape
from neox_lr.schedules import passed, ramp
from neox_lr.staged_settings import StagedSettings, WSDSettings

SHAPES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: (1.0 + math.cos(math.pi * t)) / 2.0,
    "sqrt": lambda t: 1.0 - math.sqrt(t),
}
"""The share of the way through a stage, 0 to 1 -> the share that is left of the way from its first rate to its last."""


def wsd(shape: ScheduleShape, settings: WSDSettings) -> LRSchedule:
    """The peak after the warm-up, and a fall to min_lr in the last steps of the decay (arXiv:2404.06395).

    The fall takes a share of all `decay_steps`, or what the warm-up leaves of them where that is less.
    """
    length = max(1, shape.decay_steps - shape.warmup_steps)
    fall = min(1.0, settings.lr_wsd_decay_fraction * shape.decay_steps / length)
    stages = (
        (0.0, 1.0 - fall, shape.peak_lr, "constant"),
        (1.0 - fall, 1.0, shape.min_lr, settings.lr_wsd_decay_style),
    )
    return _along(shape, stages)


def inverse_sqrt(shape: ScheduleShape, settings: None) -> LRSchedule:
    """peak_lr * sqrt(warmup_steps / step) after the warm-up, never below min_lr (arXiv:1706.03762, 5.3)."""

    def rate(step: int) -> float:
        first = max(1, shape.warmup_steps)
        rising = ramp(shape, step)
        return max(shape.min_lr, shape.peak_lr * math.sqrt(first / max(first, step))) if rising is None else rising

    return rate


def staged(shape: ScheduleShape, settings: StagedSettings) -> LRSchedule:
    """After the warm-up one stage after the other, each from the last rate of that before it to its own."""
    ends = list(accumulate(stage["share"] for stage in settings.lr_stages))
    starts = (0.0, *ends[:-1])
    ends[-1] = 1.0
    rate, stages = shape.peak_lr, []
    for stage, start, end in zip(settings.lr_stages, starts, ends, strict=True):
        if stage["style"] != "constant":
            rate = float(stage.get("to", shape.min_lr))
        stages.append((start, end, rate, stage["style"]))
    return _along(shape, tuple(stages))


def _along(shape: ScheduleShape, stages: tuple[tuple[float, float, float, str], ...]) -> LRSchedule:
    """stages: of each its start and end, shares of the way from the warm-up to `decay_steps`, its last rate, its style.

    At the end of a stage the rate is its last one.
    """

    def rate(step: int) -> float:
        rising = ramp(shape, step)
        if rising is not None:
            return rising
        t, before = passed(shape, step), shape.peak_lr
        for start, end, last, style in stages:
            if t < end:
                left = SHAPES[style](max(0.0, (t - start) / (end - start)))
                return last + (before - last) * left
            before = last
        return before

    return rate
