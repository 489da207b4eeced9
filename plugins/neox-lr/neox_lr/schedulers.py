"""DeepSpeed's schedules as closed forms, number for number (deepspeed.runtime.lr_schedules).

DeepSpeed sets the starting rate, makes an update, and only then counts: the update that follows `step` finished ones is
made at the rate of its iteration `step - 1`, and the first at the rate from before all iterations.
"""

import math
from collections.abc import Callable
from typing import Any

from attrs import frozen

from neox_core.contracts.optim import ScheduleShape
from neox_lr.settings import (
    OneCycleSettings,
    RangeTestSettings,
    WarmupCosineSettings,
    WarmupDecaySettings,
    WarmupSettings,
)

Ramp = Callable[[int], float]
SECOND_BETA = 0.99
"""What DeepSpeed puts beside a momentum that it cycles, whatever the optimizer's settings are."""


def warmup(shape: ScheduleShape, settings: WarmupSettings) -> Callable[[int], float]:
    """The ramp, then `warmup_max_lr`."""
    return _Warmup(shape, settings, lambda iteration: 1.0)


def warmup_decay(shape: ScheduleShape, settings: WarmupDecaySettings) -> Callable[[int], float]:
    """The ramp, then a straight line that is 0 at `total_num_steps`."""
    total, ramp = settings.total_num_steps or shape.total_steps, _length(settings.warmup_num_steps)
    return _Warmup(shape, settings, lambda iteration: max(0.0, (total - iteration) / max(1.0, total - ramp)))


def warmup_cosine(shape: ScheduleShape, settings: WarmupCosineSettings) -> Callable[[int], float]:
    """The ramp from `warmup_min_ratio` of the peak, then half a cosine to `cos_min_ratio` of it."""
    length, ramp = _length(settings.warmup_num_steps), _ramp(settings.warmup_num_steps, settings.warmup_type)
    total = settings.total_num_steps or shape.total_steps

    def ratio(iteration: int) -> float:
        if iteration < 0:
            return 0.0
        if iteration < length:
            return settings.warmup_min_ratio + ramp(iteration) * (1.0 - settings.warmup_min_ratio)
        progress = min(1.0, (iteration - length + 1) / max(1, total - length))
        return settings.cos_min_ratio + (1.0 - settings.cos_min_ratio) * (1 + math.cos(math.pi * progress)) / 2

    return lambda step: shape.peak_lr * ratio(step - 1)


@frozen
class _Warmup:
    shape: ScheduleShape
    settings: WarmupSettings
    after: Ramp

    def __call__(self, step: int) -> float:
        iteration, low = step - 1, self.settings.warmup_min_lr
        if iteration < 0:
            return low
        high = self.shape.peak_lr if self.settings.warmup_max_lr is None else self.settings.warmup_max_lr
        ramped = iteration < _length(self.settings.warmup_num_steps)
        part = _ramp(self.settings.warmup_num_steps, self.settings.warmup_type) if ramped else self.after
        return low + (high - low) * part(iteration)


def _length(num_steps: int) -> int:
    """A logarithm's ramp needs two steps."""
    return max(2, num_steps)


def _ramp(num_steps: int, kind: str) -> Ramp:
    length = _length(num_steps)
    if kind == "linear":
        return lambda iteration: iteration / length
    return lambda iteration: math.log(iteration + 1) / math.log(length)


@frozen
class OneCycle:
    """From `cycle_min_lr` to `cycle_max_lr` and back, then a slow decay; the momentum the other way round."""

    settings: OneCycleSettings

    def __call__(self, step: int) -> float:
        """The rate."""
        settings, up_to = self.settings, self._height(step)
        if up_to is not None:
            return settings.cycle_min_lr + (settings.cycle_max_lr - settings.cycle_min_lr) * up_to
        return settings.cycle_min_lr / self._decay(settings.decay_lr_rate, step)

    def options(self, step: int) -> dict[str, Any]:
        """The momentum of Adam and its kin, with DeepSpeed's second beta, or of gradient descent."""
        if not self.settings.cycle_momentum:
            return {}
        momentum = self.momentum(step)
        return {"betas": (momentum, SECOND_BETA), "momentum": momentum}

    def momentum(self, step: int) -> float:
        """DeepSpeed makes the first update at the least momentum, before its iterations begin."""
        low, high = (0.8 if (least := self.settings.cycle_min_mom) is None else least), self.settings.cycle_max_mom
        high = 0.9 if high is None else high
        if step == 0:
            return low
        height = self._height(step)
        if height is not None:
            return high - (high - low) * height
        return high * self._decay(self.settings.decay_mom_rate or 0.0, step)

    def _height(self, step: int) -> float | None:
        """From 0 at both ends of the cycle to 1 at its top; None after it."""
        settings, up, down = self.settings, self.settings.cycle_first_step_size, self._down()
        place, stairs = step % (up + down), settings.cycle_second_stair_count
        if step <= up + down and place <= up:
            return _stair(place, up, settings.cycle_first_stair_count)
        if step < up + down:
            return _stair(up + down - place, down, settings.cycle_first_stair_count if stairs is None else stairs)
        return None

    def _decay(self, rate: float, step: int) -> float:
        """The factor of a decay since the end of the cycle."""
        size, since = self.settings.decay_step_size, step - self.settings.cycle_first_step_size - self._down()
        return 1 + rate * since / size if size else 1.0

    def _down(self) -> int:
        down = self.settings.cycle_second_step_size
        return self.settings.cycle_first_step_size if down is None else down


def one_cycle(shape: ScheduleShape, settings: OneCycleSettings) -> OneCycle:
    """As `OneCycle`."""
    return OneCycle(settings)


def _stair(done: int, of: int, stairs: int) -> float:
    """The share of a half cycle that is done, down to the stair below."""
    return math.floor(done * stairs / of) / stairs if stairs else done / of


def range_test(shape: ScheduleShape, settings: RangeTestSettings) -> Callable[[int], float]:
    """`lr_range_test_min_lr` x (1 + rate x step / size)."""

    def rate(step: int) -> float:
        units = step / settings.lr_range_test_step_size
        grown = math.floor(units) if settings.lr_range_test_staircase else units
        return settings.lr_range_test_min_lr * (1 + settings.lr_range_test_step_rate * grown)

    return rate
