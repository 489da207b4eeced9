import math

import pytest
from neox_author.testing import assert_light, check_lr_schedule, load_only

from neox_core.contracts.optim import ScheduleShape

NAMES = ["constant", "cosine", "exponential", "linear"]


def at(name: str, step: int, warmup: int = 0, decay: int = 100, floor: float = 0.0) -> float:
    shape = ScheduleShape(peak_lr=2.0, min_lr=floor, warmup_steps=warmup, decay_steps=decay, total_steps=decay)
    return load_only("neox-lr").find("lr schedule", name).load()(shape, None)(step)


def test_listing_imports_no_torch() -> None:
    assert_light("neox-lr")


@pytest.mark.parametrize("name", NAMES)
def test_schedule_contract(name: str) -> None:
    check_lr_schedule(load_only("neox-lr"), name)


@pytest.mark.parametrize("step", [0, 1, 25, 50, 99, 100, 1000])
def test_closed_forms_without_warmup(step: int) -> None:
    t = min(step, 100) / 100
    assert at("constant", step) == 2.0
    assert at("linear", step) == pytest.approx(2.0 * (1 - t))
    assert at("cosine", step) == pytest.approx(2.0 * math.cos(math.pi * t / 2) ** 2, abs=1e-12)
    assert at("exponential", step) == pytest.approx(2.0 * 0.5**t, rel=3e-4)  # exp(-0.693 t), GPT-NeoX's ln 2


@pytest.mark.parametrize("name", NAMES)
def test_warmup_is_a_ramp_from_zero(name: str) -> None:
    assert [at(name, step, warmup=10) for step in (0, 5, 10)] == pytest.approx([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("name", "step", "factor"),
    [
        # Computed by hand from GPT-NeoX's AnnealingLR: t = (min(step, 100 - 10) - 10) / 100.
        ("linear", 50, 0.6),
        ("linear", 90, 0.2),
        ("linear", 100, 0.2),
        ("cosine", 60, 0.5),
        ("cosine", 100, (1 + math.cos(0.8 * math.pi)) / 2),
        ("exponential", 100, math.exp(-0.693 * 0.8)),
    ],
)
def test_divides_by_the_whole_horizon(name: str, step: int, factor: float) -> None:
    assert at(name, step, warmup=10) == pytest.approx(2.0 * factor)


@pytest.mark.parametrize("name", ["linear", "cosine", "exponential"])
def test_floor(name: str) -> None:
    assert at(name, 100, floor=1.5) == 1.5
    assert at(name, 1, warmup=10, floor=1.5) == pytest.approx(0.2)  # not during the warm-up
