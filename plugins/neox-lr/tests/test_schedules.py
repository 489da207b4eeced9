"""The schedules of lr-decay-style against GPT-NeoX's own numbers and closed forms."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import assert_light, build, check_lr_schedule, load_only

from neox_core.config.report import ProblemsError
from neox_core.contracts.optim import ScheduleShape

GPT_NEOX: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data/annealing_lr.json").read_text(encoding="utf-8")
)["cases"]
CURVES = ["constant", "cosine", "exponential", "linear"]
STAGES = [
    {"style": "constant", "share": 0.25},
    {"style": "cosine", "share": 0.5, "to": 0.5},
    {"style": "linear", "share": 0.25},
]


PLUGIN = load_only("neox-lr")


def rates(name: str, shape: ScheduleShape, **settings: Any) -> Any:
    entry = PLUGIN.find("lr schedule", name)
    return entry.load()(shape, build(entry, **settings))


def at(
    name: str, step: int, warmup: float = 0, decay: int = 100, floor: float = 0.0, peak: float = 2.0, **settings: Any
) -> float:
    shape = ScheduleShape(peak_lr=peak, min_lr=floor, warmup_steps=warmup, decay_steps=decay, total_steps=decay)
    rate: float = rates(name, shape, **settings)(step)
    return rate


def test_listing_imports_no_torch() -> None:
    assert_light("neox-lr")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", CURVES)
def test_curves_keep_the_contract(name: str, version: int) -> None:
    check_lr_schedule(PLUGIN, name, lr_decay_version=version)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("inverse-sqrt", {}),
        ("wsd", {}),
        ("wsd", {"lr_wsd_decay_style": "sqrt", "lr_wsd_decay_fraction": 1.0}),
        ("staged", {"lr_stages": [{"style": "cosine", "share": 0.8}, {"style": "linear", "share": 0.2}]}),
    ],
)
def test_the_others_keep_the_contract(name: str, settings: dict[str, Any]) -> None:
    check_lr_schedule(PLUGIN, name, **settings)


@pytest.mark.parametrize("case", GPT_NEOX, ids=lambda each: f"{each['style']} {each['peak']} {each['warmup']}")
def test_every_update_is_made_at_gpt_neoxs_rate(case: dict[str, Any]) -> None:
    warmup, decay = round(case["warmup"] * case["decay"]), case["decay"]
    shape = ScheduleShape(case["peak"], case["floor"], warmup, decay, decay)
    schedule = rates(case["style"], shape)
    assert [schedule(step) for step in range(len(case["rates"]))] == pytest.approx(case["rates"], rel=1e-13)


@pytest.mark.parametrize("name", CURVES)
def test_the_first_two_updates_have_the_same_rate(name: str) -> None:
    assert [at(name, step, warmup=10) for step in (0, 1, 2, 5, 10)] == pytest.approx([0.2, 0.2, 0.4, 1.0, 2.0])


def test_a_cosine_stays_at_its_end() -> None:
    """GPT-NeoX's rises again."""
    assert [at("cosine", step, warmup=10, floor=0.5) for step in (55, 100, 101, 190, 1000)] == [1.25, *[0.5] * 4]


@pytest.mark.parametrize("step", [0, 1, 25, 50, 99, 100, 1000])
def test_older_closed_forms_without_warmup(step: int) -> None:
    t = min(step, 100) / 100
    older = {"lr_decay_version": 1}
    assert at("constant", step, **older) == 2.0
    assert at("linear", step, **older) == pytest.approx(2.0 * (1 - t))
    assert at("cosine", step, **older) == pytest.approx(2.0 * math.cos(math.pi * t / 2) ** 2, abs=1e-12)
    assert at("exponential", step, **older) == pytest.approx(2.0 * 0.5**t, rel=3e-4)


@pytest.mark.parametrize(
    ("name", "step", "factor"),
    [
        # Computed by hand from the older AnnealingLR: t = (min(step, 100 - 10) - 10) / 100.
        ("linear", 5, 0.5),
        ("linear", 50, 0.6),
        ("linear", 90, 0.2),
        ("linear", 100, 0.2),
        ("cosine", 60, 0.5),
        ("cosine", 100, (1 + math.cos(0.8 * math.pi)) / 2),
        ("exponential", 100, math.exp(-0.693 * 0.8)),
    ],
)
def test_the_older_one_divides_by_the_whole_horizon(name: str, step: int, factor: float) -> None:
    assert at(name, step, warmup=10, lr_decay_version=1) == pytest.approx(2.0 * factor)
    assert at(name, 0, warmup=10, lr_decay_version=1) == 0.0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["linear", "cosine", "exponential"])
def test_floor(name: str, version: int) -> None:
    assert at(name, 100, floor=1.5, lr_decay_version=version) == 1.5
    assert at(name, 1, warmup=10, floor=1.5, lr_decay_version=version) == pytest.approx(0.2)  # not during the warm-up


@pytest.mark.parametrize(
    ("style", "half"), [("linear", 1.25), ("cosine", 1.25), ("sqrt", 0.5 + 1.5 * (1 - math.sqrt(0.5)))]
)
def test_wsd_is_flat_until_its_last_steps(style: str, half: float) -> None:
    found = [
        at("wsd", step, 10, floor=0.5, lr_wsd_decay_fraction=0.2, lr_wsd_decay_style=style)
        for step in (0, 5, 10, 11, 79, 80, 90, 100, 500)
    ]
    assert found == pytest.approx([0.2, 1.0, 2.0, 2.0, 2.0, 2.0, half, 0.5, 0.5])


def test_wsd_falls_over_what_the_warmup_leaves() -> None:
    found = [at("wsd", step, 60, lr_wsd_decay_fraction=0.9) for step in (60, 70, 100)]
    assert found == pytest.approx([2.0, 1.5, 0.0])


@pytest.mark.parametrize("version", [1, 2])
def test_a_warmup_may_end_within_a_step(version: int) -> None:
    """AnnealingLR.get_lr of GPT-NeoX ea7aefd8 and, with 1, of GPT-NeoX 1, whose warm-up is a float, by hand."""
    warmup, end, peak = 2.6, 20, 2.0
    ramp = {2: [max(1, step) * peak / warmup for step in (0, 1, 2)], 1: [step * peak / warmup for step in (0, 1, 2)]}
    passed = {
        2: [(step - warmup) / (end - warmup) for step in (3, 11, 19)],
        1: [(step - warmup) / end for step in (3, 11)],
    }
    shape = ScheduleShape(peak_lr=peak, min_lr=0.0, warmup_steps=warmup, decay_steps=end, total_steps=end)
    found = rates("linear", shape, lr_decay_version=version)
    assert [found(step) for step in (0, 1, 2)] == pytest.approx(ramp[version])
    wanted = [peak * (1 - each) for each in passed[version]]
    assert [found(step) for step in (3, 11, 19)][: len(wanted)] == pytest.approx(wanted)
    assert at("cosine", 0, 0.2) == 2.0
    assert at("cosine", 1, 0.2) == pytest.approx(1 + math.cos(math.pi * 0.8 / 99.8))
    assert at("linear", 100, 99.5) == pytest.approx(0.0)


def test_inverse_square_root() -> None:
    """d^-0.5 * min(n^-0.5, n * w^-1.5) of Vaswani et al., where the peak is d^-0.5 * w^-0.5; n counts from 1."""
    warmup, steps = 25, range(1, 300)
    paper = [2.0 * warmup**0.5 * min(step**-0.5, step * warmup**-1.5) for step in steps]
    shape = ScheduleShape(peak_lr=2.0, min_lr=0.0, warmup_steps=warmup, decay_steps=100, total_steps=100)
    assert list(map(rates("inverse-sqrt", shape), steps)) == pytest.approx(paper)
    assert at("inverse-sqrt", 10**6, warmup, floor=0.3) == 0.3
    assert [at("inverse-sqrt", step) for step in (0, 1, 4)] == pytest.approx([2.0, 2.0, 1.0])


def test_stages_follow_one_another() -> None:
    wanted = {0: 0.1, 20: 2.0, 39: 2.0, 40: 2.0, 60: 1.25, 80: 0.5, 90: 0.3, 100: 0.1, 1000: 0.1}
    assert {step: at("staged", step, 20, floor=0.1, lr_stages=STAGES) for step in wanted} == pytest.approx(wanted)


def test_one_stage_is_the_curve_of_its_shape() -> None:
    shape = ScheduleShape(peak_lr=2.0, min_lr=0.0, warmup_steps=10, decay_steps=100, total_steps=100)
    for name in ("linear", "cosine"):
        mine = rates("staged", shape, lr_stages=[{"style": name, "share": 1.0}])
        curve = [max(0.0, rate) for rate in map(rates(name, shape), range(120))]
        assert list(map(mine, range(120))) == pytest.approx(curve, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("linear", {"lr_decay_version": 3}, "must be one of 1, 2"),
        ("wsd", {"lr_wsd_decay_fraction": 0.0}, "lr_wsd_decay_fraction"),
        ("wsd", {"lr_wsd_decay_style": "cubic"}, "must be one of 'linear', 'cosine', 'sqrt'"),
        ("staged", {}, "lr_stages: is required"),
        ("staged", {"lr_stages": [{"style": "cosine", "share": 0.8}]}, "have to add up to 1, and are 0.8"),
        ("staged", {"lr_stages": []}, "and are none"),
        ("staged", {"lr_stages": [{"style": "constant", "share": 1.0, "to": 0.1}]}, "leave out `to`"),
        ("staged", {"lr_stages": [{"style": "linear", "part": 1.0}]}, "stage 1: has style, share and perhaps `to`"),
        ("staged", {"lr_stages": [{"style": "linear", "share": "1"}]}, "share must be above 0 and at most 1"),
        ("staged", {"lr_stages": [{"style": "linear", "share": 1, "to": True}]}, "to must be a learning rate"),
        ("staged", {"lr_stages": [{"style": ["linear"], "share": 1}]}, "style must be one of constant, linear"),
    ],
)
def test_what_cannot_be_is_refused(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        build(PLUGIN.find("lr schedule", name), **settings)
