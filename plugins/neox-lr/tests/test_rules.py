"""What a config may not ask of a schedule."""

from pathlib import Path

import pytest
from neox_lr import schedules
from neox_lr.curve_settings import CurveSettings

from neox_core.config.report import ProblemsError
from neox_core.contracts.optim import ScheduleShape
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run

CONFIG = """
num-layers: 1
hidden-size: 8
num-attention-heads: 1
seq-length: 8
max-position-embeddings: 8
padded-vocab-size: 16
train-iters: 100
train_batch_size: 1
device: cpu
data-path: none
num_gpus: 1
engine: plain
optimizer: {type: Adam, params: {lr: 1.0e-3}}
"""


def resolved(folder: Path, *sets: str) -> Resolved:
    (folder / "run.yml").write_text(CONFIG)
    return prepare_run([folder / "run.yml"], sets, catalog=load_plugins(), start=False)


@pytest.mark.parametrize("to", ["2.0e-3", "1.0e-5"])
def test_a_stage_ends_between_the_floor_and_the_peak(tmp_path: Path, to: str) -> None:
    stages = f"lr-stages=[{{style: cosine, share: 0.8, to: {to}}}, {{style: linear, share: 0.2}}]"
    with pytest.raises(ProblemsError, match=r"lr-stages: stage 1 ends at .* min-lr, 0.0001, to the peak, 0.001"):
        resolved(tmp_path, "lr-decay-style=staged", stages, "min-lr=1.0e-4")
    fine = stages.replace(to, "5.0e-4")
    assert resolved(tmp_path, "lr-decay-style=staged", fine, "min-lr=1.0e-4").plan.optim.schedule.name == "staged"


def test_an_inverse_square_root_needs_a_warmup(tmp_path: Path) -> None:
    said = [each.message for each in resolved(tmp_path, "lr-decay-style=inverse-sqrt", "warmup=0").notes]
    assert any("the second update has 0.7 of the peak" in each for each in said)
    assert not any(
        "0.7 of the peak" in each.message for each in resolved(tmp_path, "lr-decay-style=inverse-sqrt").notes
    )


@pytest.mark.parametrize(
    ("name", "warmup", "floor", "noted"),
    [
        ("linear", 0, 0.0, True),
        ("constant", 0, 1e-4, True),
        ("cosine", 0, 0.0, True),
        ("cosine", 0, 1e-4, False),
        ("exponential", 0, 0.0, False),
        ("linear", 10, 0.0, False),
    ],
)
def test_the_older_curve_is_another_one_or_that_is_said(
    tmp_path: Path, name: str, warmup: int, floor: float, noted: bool
) -> None:
    """Here of 100 steps, of which the decay takes 80."""
    sets = (f"lr-decay-style={name}", f"warmup={warmup / 80}", f"min-lr={floor}", "lr-decay-iters=80")
    said = [each.message for each in resolved(tmp_path, *sets, "lr-decay-version=1").notes]
    assert any("both curves are the same" in each for each in said) == noted
    shape, curve = ScheduleShape(1e-3, floor, warmup, 80, 100), getattr(schedules, name)
    older, newer = (curve(shape, CurveSettings(lr_decay_version=version)) for version in (1, 2))
    assert ([older(step) for step in range(100)] == [newer(step) for step in range(100)]) == noted


@pytest.mark.parametrize("key", ["lr-decay-version=1", "lr-wsd-decay-fraction=0.2"])
def test_a_setting_of_another_schedule_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(ProblemsError, match="belongs to lr schedule"):
        resolved(tmp_path, "lr-decay-style=inverse-sqrt", key)


CYCLE = "cycle_min_lr: 1.0e-4, cycle_max_lr: 1.0e-3, cycle_first_step_size: 20, decay_step_size: 10"


@pytest.mark.parametrize(
    ("more", "optimizer", "said"),
    [
        ("", "{type: Adagrad, params: {lr: 1.0e-3}}", "cycle_momentum: Adagrad has no momentum that could cycle"),
        ("", "{type: SGD, params: {lr: 1.0e-3}}", "cycle_momentum: SGD keeps no momentum: its own is 0"),
        (
            "decay_mom_rate: 0.04",  # 0.9 x (1 + 0.04 x 59 / 10) at the last step
            "{type: Adam, params: {lr: 1.0e-3}}",
            "decay_mom_rate: the momentum grows to 1.112 at step 99, and has to stay below 1",
        ),
    ],
)
def test_a_momentum_that_cannot_cycle_is_an_error(tmp_path: Path, more: str, optimizer: str, said: str) -> None:
    cycle = f"scheduler={{type: OneCycle, params: {{{CYCLE}, {more}}}}}"
    with pytest.raises(ProblemsError, match=said):
        resolved(tmp_path, cycle, f"optimizer={optimizer}")


def test_betas_beside_a_momentum_that_cycles_do_nothing(tmp_path: Path) -> None:
    cycle = f"scheduler={{type: OneCycle, params: {{{CYCLE}}}}}"
    betas = "optimizer={type: Adam, params: {lr: 1.0e-3, betas: [0.9, 0.95]}}"
    said = "optimizer.params.betas: does nothing: the scheduler cycles the first, and the second is 0.99"
    assert any(said in f"{each.key}: {each.message}" for each in resolved(tmp_path, cycle, betas).notes)
    still = cycle.replace("}}", ", cycle_momentum: false}}")
    assert not any("0.99" in each.message for each in resolved(tmp_path, still, betas).notes)
    momentum = "optimizer={type: SGD, params: {lr: 1.0e-3, momentum: 0.5}}"
    assert resolved(tmp_path, cycle, momentum).plan.optim.schedule.settings["cycle_momentum"] is True


@pytest.mark.parametrize("rate", ["decay_lr_rate", "decay_mom_rate"])
def test_a_decay_without_a_step_size_does_nothing(tmp_path: Path, rate: str) -> None:
    decays = f"scheduler={{type: OneCycle, params: {{{CYCLE}, {rate}: 1.0e-3}}}}"
    said = "does nothing while decay_step_size is 0"
    assert not any(said in each.message for each in resolved(tmp_path, decays).notes)
    still = resolved(tmp_path, decays.replace("decay_step_size: 10", "decay_step_size: 0")).notes
    assert [each.key for each in still if said in each.message] == [f"scheduler.params.{rate}"]
