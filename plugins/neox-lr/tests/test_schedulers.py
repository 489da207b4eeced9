"""DeepSpeed's schedules against DeepSpeed's own classes, update by update."""

import pytest
import torch
from deepspeed.runtime import lr_schedules
from neox_author.testing import build, check_scheduler, load_only

from neox_core.config.report import ProblemsError
from neox_core.contracts.optim import ScheduleShape

PEAK = 3e-3
SHAPE = ScheduleShape(peak_lr=PEAK, min_lr=0.0, warmup_steps=0, decay_steps=30, total_steps=50)
CASES = [
    ("WarmupLR", {"warmup_max_lr": 1e-3, "warmup_num_steps": 12}),
    ("WarmupLR", {"warmup_min_lr": 2e-4, "warmup_num_steps": 12, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupDecayLR", {"total_num_steps": 40, "warmup_max_lr": 1e-3, "warmup_num_steps": 10}),
    ("WarmupDecayLR", {"total_num_steps": 8, "warmup_max_lr": 1e-3, "warmup_num_steps": 10, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 40, "warmup_num_steps": 10}),
    (
        "WarmupCosineLR",
        {
            "total_num_steps": 33,
            "warmup_num_steps": 7,
            "warmup_min_ratio": 0.2,
            "cos_min_ratio": 0.3,
            "warmup_type": "linear",
        },
    ),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10}),
    (
        "OneCycle",
        {
            "cycle_min_lr": 1e-4,
            "cycle_max_lr": 1e-3,
            "cycle_first_step_size": 9,
            "cycle_second_step_size": 14,
            "cycle_first_stair_count": 3,
            "cycle_second_stair_count": 4,
            "decay_step_size": 5,
            "decay_lr_rate": 0.5,
        },
    ),
    (
        "OneCycle",
        {
            "cycle_min_lr": 1e-4,
            "cycle_max_lr": 1e-3,
            "cycle_first_step_size": 8,
            "cycle_second_step_size": 0,
            "cycle_first_stair_count": 2,
            "decay_step_size": 3,
            "decay_lr_rate": 0.1,
        },
    ),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 2.5}),
    ("LRRangeTest", {"lr_range_test_step_size": 7, "lr_range_test_staircase": True}),
]


def ours(name, **params):
    entry = load_only("neox-lr").find("scheduler", name)
    momentum = {"cycle_momentum": False} if name in ("OneCycle", "1Cycle") else {}
    return entry.load()(SHAPE, build(entry, **params, **momentum))


@pytest.mark.parametrize(("name", "params"), CASES)
def test_every_update_is_made_at_deepspeeds_rate(name, params):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    momentum = {"cycle_momentum": False} if name == "OneCycle" else {}
    theirs = getattr(lr_schedules, name)(optimizer, **params, **momentum)
    rates = []
    for _ in range(60):
        rates.append(optimizer.param_groups[0]["lr"])
        theirs.step()
    schedule = ours(name, **params)
    assert [schedule(step) for step in range(60)] == pytest.approx(rates, rel=1e-12, abs=1e-18)
    assert [schedule(step) for step in reversed(range(60))] == [schedule(step) for step in range(60)][::-1]


@pytest.mark.parametrize(("name", "params"), [CASES[1], CASES[4], CASES[6], CASES[8], CASES[11]])
def test_scheduler_contract(name, params):
    check_scheduler(load_only("neox-lr"), name, **params, **({"cycle_momentum": False} if name == "OneCycle" else {}))


MOMENTA = [
    {"cycle_first_step_size": 10},
    {"cycle_first_step_size": 9, "cycle_second_step_size": 14, "cycle_min_mom": 0.7, "cycle_max_mom": 0.95},
    {
        "cycle_first_step_size": 8,
        "cycle_second_step_size": 6,
        "cycle_first_stair_count": 4,
        "cycle_second_stair_count": 2,
        "decay_step_size": 3,
        "decay_mom_rate": 0.01,
        "cycle_max_mom": 0.85,
    },
]


@pytest.mark.parametrize("params", MOMENTA)
def test_every_update_is_made_with_deepspeeds_betas(params):
    params = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, **params}
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    theirs = lr_schedules.OneCycle(optimizer, **params)
    betas = []
    for _ in range(40):
        betas.append(optimizer.param_groups[0]["betas"])
        theirs.step()
    entry = load_only("neox-lr").find("scheduler", "OneCycle")
    schedule = entry.load()(SHAPE, build(entry, **params))
    found = [schedule.options(step)["betas"] for step in range(40)]
    assert [first for first, _ in found] == pytest.approx([first for first, _ in betas], rel=1e-12)
    assert {second for _, second in found} == {second for _, second in betas} == {0.99}
    assert [schedule.options(step) for step in reversed(range(40))][::-1] == [schedule.options(s) for s in range(40)]


def test_the_momentum_falls_to_its_least_at_the_highest_rate_and_rises_again():
    params = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 4, "cycle_second_step_size": 2}
    entry = load_only("neox-lr").find("scheduler", "OneCycle")
    momenta = {"cycle_min_mom": 0.5, "cycle_max_mom": 0.9, "decay_step_size": 2, "decay_mom_rate": 0.05}
    schedule = entry.load()(SHAPE, build(entry, **params, **momenta))
    # the first is DeepSpeed's own; then 0.9 - 0.4 x height, and 0.9 x (1 + 0.05 x steps / 2) after step 6
    expected = [0.5, 0.8, 0.7, 0.6, 0.5, 0.7, 0.9, 0.9225, 0.945]
    assert [schedule.options(step)["momentum"] for step in range(9)] == pytest.approx(expected, rel=1e-12)
    still = entry.load()(SHAPE, build(entry, **params, cycle_momentum=False))
    assert still.options(3) == {}


def test_one_cycle_has_two_spellings():
    params = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10}
    assert [ours("1Cycle", **params)(step) for step in range(40)] == [
        ours("OneCycle", **params)(step) for step in range(40)
    ]


def test_what_is_left_out_follows_from_the_run():
    assert ours("WarmupLR", warmup_num_steps=4)(10) == PEAK
    assert ours("WarmupDecayLR", warmup_num_steps=4)(51) == 0.0
    assert ours("WarmupDecayLR", warmup_num_steps=4)(50) > 0.0
    assert ours("WarmupCosineLR", warmup_num_steps=4, cos_min_ratio=0.5)(50) == PEAK / 2
    assert ours("WarmupCosineLR", warmup_num_steps=4, cos_min_ratio=0.5)(49) > PEAK / 2


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("WarmupLR", {"warmup_num_steps": 0}, "warmup_num_steps"),
        ("WarmupLR", {"warmup_type": "cubic"}, "must be one of 'log', 'linear'"),
        ("WarmupLR", {"lr": 1e-3}, "unknown key"),
        ("OneCycle", {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_max_mom": 1.0}, "cycle_max_mom: must be < 1"),
        (
            "OneCycle",
            {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_momentum": False, "cycle_min_mom": 0.8},
            "cycle_min_mom does nothing while cycle_momentum is false",
        ),
    ],
)
def test_what_cannot_be_is_refused(name, params, said):
    with pytest.raises(ProblemsError, match=said):
        build(load_only("neox-lr").find("scheduler", name), **params)
