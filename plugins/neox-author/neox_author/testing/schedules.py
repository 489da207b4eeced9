"""The check of a learning-rate schedule against `neox_core.contracts.optim.LRSchedule`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import check_light, clauses, hold
from neox_author.testing.plugins import build
from neox_core.contracts.optim import LRSchedule, ScheduleShape

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry

SHAPES = (
    ScheduleShape(peak_lr=1e-3, min_lr=0.0, warmup_steps=0, decay_steps=100, total_steps=100),
    ScheduleShape(peak_lr=1e-3, min_lr=1e-4, warmup_steps=10, decay_steps=100, total_steps=100),
    ScheduleShape(peak_lr=1e-3, min_lr=0.0, warmup_steps=20.9, decay_steps=100, total_steps=100),
    ScheduleShape(peak_lr=0.5, min_lr=0.5, warmup_steps=3, decay_steps=50, total_steps=80),
    ScheduleShape(peak_lr=2e-4, min_lr=0.0, warmup_steps=60, decay_steps=80, total_steps=200),
    ScheduleShape(peak_lr=1e-3, min_lr=0.0, warmup_steps=1, decay_steps=1, total_steps=1),
)


@clauses
def check_lr_schedule(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `contracts.LRSchedule` that the schedule breaks."""
    entry = catalog.find("lr schedule", name)
    target = entry.load()
    check_light(entry.component.target)
    for shape in SHAPES:
        try:
            _check_curve(_maker(target, shape, entry, settings), shape)
        except AssertionError as error:
            raise AssertionError(f"{error}; not with {shape}") from None


@clauses
def check_scheduler(catalog: Catalog, name: str, **settings: Any) -> None:
    """The same for a scheduler, which may have peaks and lengths of its own."""
    entry = catalog.find("scheduler", name)
    target = entry.load()
    check_light(entry.component.target)
    for shape in SHAPES:
        _rates(_maker(target, shape, entry, settings), shape)


def _maker(target: Any, shape: ScheduleShape, entry: Entry, settings: dict[str, Any]) -> Callable[[], LRSchedule]:
    return lambda: target(shape, build(entry, **settings))


def _rates(make: Callable[[], LRSchedule], shape: ScheduleShape) -> list[float]:
    """The value at each step, until after the end of the run."""
    steps = range(2 * shape.total_steps + 2)
    schedule = make()
    hold(callable(schedule), f"a schedule is called with a step; it makes a {type(schedule).__name__}")
    rates = [schedule(step) for step in steps]
    hold(all(isinstance(rate, float) for rate in rates), "a float")
    hold(all(math.isfinite(rate) for rate in rates), "finite at every step, beyond the end of the run too")
    hold(all(rate >= 0 for rate in rates), "never negative")
    backwards = [schedule(step) for step in reversed(steps)][::-1]
    hold(backwards == rates, "a pure function of the step: asked backwards it says the same")
    hold([make()(step) for step in steps] == rates, "a pure function of the step: a new one needs no replay")
    if hasattr(schedule, "options"):
        _check_options(schedule, make(), steps)
    return rates


def _check_options(schedule: Any, another: Any, steps: range) -> None:
    options = [schedule.options(step) for step in steps]
    named = all(isinstance(each, Mapping) and not {"lr", "params"} & set(each) for each in options)
    hold(named, "options: a mapping of names to values, without lr and params")
    hold([another.options(step) for step in reversed(steps)][::-1] == options, "options: a pure function of the step")


def _check_curve(make: Callable[[], LRSchedule], shape: ScheduleShape) -> None:
    rates = _rates(make, shape)
    warmup, peak, slack = math.ceil(shape.warmup_steps), shape.peak_lr, 1e-9 * shape.peak_lr
    hold(all(rate <= peak + slack for rate in rates), "never above peak_lr")
    first = 1 if warmup and rates[0] else 0
    ramp = [peak * max(first, step) / shape.warmup_steps for step in range(warmup)]
    straight = all(abs(rate - right) <= slack for rate, right in zip(rates, ramp, strict=False))
    hold(straight, "a straight ramp over warmup_steps, from 0 or from the rate of step 1")
    hold(abs(rates[warmup] - peak) <= 0.05 * peak, "continuous at the end of the warm-up: it begins at peak_lr")
    after = rates[max(warmup, 1) :]
    hold(all(rate >= shape.min_lr - slack for rate in after), "not below min_lr once the warm-up is over")
    ended = rates[max(warmup + 1, shape.decay_steps) :]
    hold(all(later <= rate + slack for rate, later in pairwise(ended)), "no higher later, from decay_steps on")
