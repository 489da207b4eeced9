"""What a run keeps of its learning rate, for both ways to say a schedule."""

import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from attrs import evolve
from neox_author.testing.plans import example_plan

from neox_core.contracts.optim import planned_schedule
from neox_core.errors import PluginError
from neox_core.plan.runfile import ComponentRef
from neox_core.plan.stored.schedule import schedule_terms

WARMUP = ComponentRef(
    "scheduler", "WarmupLR", "neox-lr", "0.1.0", "neox_lr.schedulers:warmup", "neox_lr.settings:WarmupSettings"
)
LINEAR = ComponentRef(
    "lr schedule", "linear", "neox-lr", "0.1.0", "neox_lr.schedules:linear", "neox_lr.curve_settings:CurveSettings"
)


@pytest.fixture
def optim(tmp_path: Path):
    return evolve(example_plan(tmp_path, ranks=(1,)).optim, lr=0.5, schedule=LINEAR)


def test_the_planned_schedule_is_the_components(optim):
    assert planned_schedule(optim, 10)(5) == 0.25
    steps = evolve(WARMUP, settings={"warmup_num_steps": 4, "warmup_type": "linear"})
    assert planned_schedule(evolve(optim, schedule=steps), 10)(3) == 0.25  # DeepSpeed's iteration 2 of 4


@pytest.mark.parametrize("rate", [None, "0.1", -1e-3, math.nan, math.inf, 1j])
def test_a_schedule_that_gives_no_rate_is_an_error_that_names_it(optim, monkeypatch, rate):
    module = ModuleType("neox_mutants")
    module.target = lambda shape, settings: lambda step: rate if step else 1 / 0
    monkeypatch.setitem(sys.modules, "neox_mutants", module)
    faulty = ComponentRef("lr schedule", "odd", "neox-mutants", "1.0", "neox_mutants:target")
    schedule = planned_schedule(evolve(optim, schedule=faulty), 10)
    with pytest.raises(PluginError, match=re.escape(f"neox-mutants:odd 1.0: the learning rate of step 3 is {rate!r}")):
        schedule(3)
    with pytest.raises(PluginError, match=r"neox-mutants:odd 1\.0 failed: ZeroDivisionError"):
        schedule(0)


def test_every_term_of_a_schedule_tells_it_from_another(optim):
    scheduler = evolve(optim, schedule=evolve(WARMUP, settings={"warmup_num_steps": 4}))
    terms = schedule_terms(scheduler)
    assert terms["scheduler.type"] == "WarmupLR"
    assert terms["scheduler.params.warmup_num_steps"] == 4
    assert schedule_terms(optim)["lr-decay-style"] == "linear"
    others = [
        optim,
        evolve(scheduler, lr=0.4),
        evolve(scheduler, min_lr=0.1),
        evolve(scheduler, warmup_steps=7),
        evolve(scheduler, decay_steps=7),
        evolve(scheduler, schedule=evolve(WARMUP, settings={"warmup_num_steps": 5})),
        evolve(scheduler, schedule=evolve(WARMUP, name="OneCycle", settings={"warmup_num_steps": 4})),
    ]
    assert all(schedule_terms(other) != terms for other in others)
