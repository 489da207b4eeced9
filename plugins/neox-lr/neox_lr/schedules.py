"""Learning rate by step, number for number as GPT-NeoX computes it (its AnnealingLR).

A curve is a function of t, the number of steps after the warm-up divided by `decay_steps`. `decay_steps` counts the
warm-up in, and t stops growing `warmup_steps` before `decay_steps`: so t ends at 1 - 2 * warmup_steps / decay_steps,
and with a warm-up no curve reaches its own end.
"""

import math
from collections.abc import Callable

from attrs import frozen

from neox_core.contracts.optim import ScheduleShape


@frozen
class Curve:
    """A linear ramp from 0 over `warmup_steps`, then peak_lr * decay(t), never below min_lr."""

    shape: ScheduleShape
    decay: Callable[[float], float]

    def __call__(self, step: int) -> float:
        shape = self.shape
        if step < shape.warmup_steps:
            return shape.peak_lr * step / shape.warmup_steps
        last = max(shape.decay_steps - shape.warmup_steps, shape.warmup_steps)
        t = (min(step, last) - shape.warmup_steps) / max(shape.decay_steps, 1)
        return max(shape.min_lr, shape.peak_lr * self.decay(t))


def constant(shape: ScheduleShape, settings: None) -> Curve:
    """The peak."""
    return Curve(shape, lambda t: 1.0)


def linear(shape: ScheduleShape, settings: None) -> Curve:
    """A straight line, zero at t = 1."""
    return Curve(shape, lambda t: 1.0 - t)


def cosine(shape: ScheduleShape, settings: None) -> Curve:
    """Half a cosine, zero at t = 1."""
    return Curve(shape, lambda t: (1.0 + math.cos(math.pi * t)) / 2.0)


def exponential(shape: ScheduleShape, settings: None) -> Curve:
    """exp(-0.693 t): about half of the peak at t = 1."""
    return Curve(shape, lambda t: math.exp(-0.693 * t))
