"""Learning rate by step, number for number as GPT-NeoX computes it: its AnnealingLR of today, and an older one.

`schedule(step)` is the rate of the update after `step` finished ones.
"""

import math
from collections.abc import Callable

from attrs import frozen

from neox_core.contracts.optim import LRSchedule, ScheduleShape
from neox_lr.curve_settings import CurveSettings

Decay = Callable[[float], float]
"""The share of the way from the start to the end of the decay -> the share of the peak."""


def ramp(shape: ScheduleShape, step: int) -> float | None:
    """The rate in the warm-up, None after it. The first two updates have the same rate, and none has 0.

    A warm-up of less than a step begins at the peak, where GPT-NeoX's begins above it.
    """
    if shape.warmup_steps and step <= shape.warmup_steps:
        return shape.peak_lr * min(1.0, max(1, step) / shape.warmup_steps)
    return None


def passed(shape: ScheduleShape, step: int) -> float:
    """Steps after the warm-up, next to those between it and `decay_steps`: 0 or more."""
    return (step - shape.warmup_steps) / (shape.decay_steps - shape.warmup_steps or 1)


@frozen
class Curve:
    """The warm-up, then peak_lr * decay(t), never below min_lr. t grows from 0 at its end to 1 at `decay_steps`."""

    shape: ScheduleShape
    decay: Decay

    def __call__(self, step: int) -> float:
        rate = ramp(self.shape, step)
        if rate is None:
            rate = max(self.shape.min_lr, self.shape.peak_lr * self.decay(passed(self.shape, step)))
        return rate


@frozen
class OlderCurve:
    """What GPT-NeoX computed before: a ramp from 0, and t that divides by all of `decay_steps`.

    t stops growing `warmup_steps` before `decay_steps`, so it ends at 1 - 2 * warmup_steps / decay_steps: with a
    warm-up no curve reaches its own end.
    """

    shape: ScheduleShape
    decay: Decay

    def __call__(self, step: int) -> float:
        shape = self.shape
        if step < shape.warmup_steps:
            return shape.peak_lr * step / shape.warmup_steps
        last = max(shape.decay_steps - shape.warmup_steps, shape.warmup_steps)
        t = (min(step, last) - shape.warmup_steps) / max(shape.decay_steps, 1)
        return max(shape.min_lr, shape.peak_lr * self.decay(t))


def constant(shape: ScheduleShape, settings: CurveSettings | None = None) -> LRSchedule:
    """The peak."""
    return _curve(shape, settings, lambda t: 1.0)


def linear(shape: ScheduleShape, settings: CurveSettings | None = None) -> LRSchedule:
    """A straight line, zero at t = 1."""
    return _curve(shape, settings, lambda t: 1.0 - t)


def exponential(shape: ScheduleShape, settings: CurveSettings | None = None) -> LRSchedule:
    """exp(-0.693 t): about half of the peak at t = 1, and less after it."""
    return _curve(shape, settings, lambda t: math.exp(-0.693 * t))


def cosine(shape: ScheduleShape, settings: CurveSettings | None = None) -> LRSchedule:
    """Half a cosine from the peak to min_lr, and min_lr after it. The older one goes to zero, and not below min_lr."""
    if _older(settings):
        return OlderCurve(shape, _half_cosine)
    return lambda step: _cosine(shape, step)


def _curve(shape: ScheduleShape, settings: CurveSettings | None, decay: Decay) -> LRSchedule:
    return OlderCurve(shape, decay) if _older(settings) else Curve(shape, decay)


def _older(settings: CurveSettings | None) -> bool:
    return settings is not None and settings.lr_decay_version == 1


def _cosine(shape: ScheduleShape, step: int) -> float:
    rate = ramp(shape, step)
    if rate is not None:
        return rate
    floor, t = shape.min_lr, min(1.0, passed(shape, step))
    return max(floor, floor + (shape.peak_lr - floor) * _half_cosine(t))


def _half_cosine(t: float) -> float:
    return (1.0 + math.cos(math.pi * t)) / 2.0
