"""check_lr_schedule passes a sound schedule and names the clause that a faulty one breaks."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
from neox_author.testing.schedules import check_lr_schedule

from neox_core.contracts.optim import ScheduleShape
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.registry import Entry, PluginInfo, Registry


class Sound:
    """A ramp, then a straight line down to min_lr."""

    def __init__(self, shape: ScheduleShape, settings: None) -> None:
        self.shape = shape

    def __call__(self, step: int) -> float:
        shape = self.shape
        if step < shape.warmup_steps:
            return shape.peak_lr * step / shape.warmup_steps
        left = max(0.0, 1 - (step - shape.warmup_steps) / max(1, shape.decay_steps - shape.warmup_steps))
        return self.floor(shape.min_lr + (shape.peak_lr - shape.min_lr) * left)

    def floor(self, rate: float) -> float:
        return rate


class Remembers(Sound):
    count = 0

    def __call__(self, step: int) -> float:
        self.count += 1
        return super().__call__(self.count)


class NeedsReplay(Sound):
    """Right only when every step is asked for in turn."""

    seen = -1

    def __call__(self, step: int) -> float:
        self.seen = max(self.seen, step)
        return super().__call__(self.seen)


class NegativeLater(Sound):
    def __call__(self, step: int) -> float:
        return super().__call__(step) - 1e-5 * max(0, step - self.shape.decay_steps)


class NotFinite(Sound):
    def __call__(self, step: int) -> float:
        return math.nan if step > 2 * self.shape.total_steps else super().__call__(step)


class Integer(Sound):
    def __call__(self, step: int) -> Any:
        return super().__call__(step) or 0


class NoWarmup(Sound):
    def __call__(self, step: int) -> float:
        return super().__call__(max(step, self.shape.warmup_steps))


class Jump(Sound):
    """Decay counted from the start of the run, so the warm-up ends in a fall."""

    def __call__(self, step: int) -> float:
        shape = self.shape
        if step < shape.warmup_steps:
            return super().__call__(step)
        return max(shape.min_lr, shape.peak_lr * max(0.0, 1 - step / shape.decay_steps))


class NoFloor(Sound):
    def floor(self, rate: float) -> float:
        return rate - self.shape.min_lr


class OverPeak(Sound):
    def __call__(self, step: int) -> float:
        return super().__call__(step) * (1.02 if step == self.shape.warmup_steps else 1.0)


class RisesAgain(Sound):
    """A cosine that is not held at its end."""

    def __call__(self, step: int) -> float:
        shape = self.shape
        if step < shape.warmup_steps:
            return super().__call__(step)
        t = (step - shape.warmup_steps) / max(1, shape.decay_steps - shape.warmup_steps)
        return shape.min_lr + (shape.peak_lr - shape.min_lr) * (1 + math.cos(math.pi * t)) / 2


class StartsAtStepOne(Sound):
    def __call__(self, step: int) -> float:
        return super().__call__(max(1, step) if self.shape.warmup_steps else step)


class WithOptions(Sound):
    def options(self, step: int) -> dict[str, Any]:
        return {"momentum": 1 / (2 + step)}


class SetsTheRate(Sound):
    def options(self, step: int) -> dict[str, Any]:
        return {"lr": 1.0}


class CountsCalls(Sound):
    """Its options follow the calls, not the step."""

    calls = 0

    def options(self, step: int) -> dict[str, Any]:
        self.calls += 1
        return {"momentum": 1 / self.calls}


Check = Callable[[str], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def run(target: Any) -> None:
        module = ModuleType("neox_mutants")
        module.target = target
        monkeypatch.setitem(sys.modules, "neox_mutants", module)
        _check("neox_mutants:target")

    return run


def _check(target: str) -> None:
    registry = Registry()
    plugin = PluginInfo("neox-mutants", "0.1.0", "neox_mutants")
    registry.add(Entry("lr schedule", Component("mutant", target), plugin))
    check_lr_schedule(Catalog(pluggy.PluginManager("neox"), registry, ()), "mutant")


@pytest.mark.parametrize("sound", [Sound, StartsAtStepOne, WithOptions])
def test_a_sound_schedule_passes(check: Callable[[Any], None], sound: type) -> None:
    check(sound)


@pytest.mark.parametrize(
    ("mutant", "clause"),
    [
        (Remembers, "pure function of the step"),
        (NeedsReplay, "asked backwards"),
        (NegativeLater, "never negative"),
        (NotFinite, "finite at every step"),
        (Integer, "a float"),
        (NoWarmup, "straight ramp"),
        (Jump, "continuous at the end of the warm-up"),
        (NoFloor, "not below min_lr|never negative|continuous"),
        (OverPeak, "never above peak_lr"),
        (RisesAgain, "no higher later, from decay_steps on"),
        (SetsTheRate, "without lr and params"),
        (CountsCalls, "options: a pure function of the step"),
    ],
)
def test_each_fault_is_named(check: Callable[[Any], None], mutant: type, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check(mutant)


def test_a_heavy_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_schedule.py").write_text("import numpy\n\ndef target(shape, settings):\n    return float\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match=r"must be light; it imports numpy"):
        _check("heavy_schedule:target")
