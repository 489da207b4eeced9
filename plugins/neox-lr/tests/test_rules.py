"""What a config may not ask of a schedule."""

from pathlib import Path

import pytest

from neox_core.config.report import ProblemsError
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


@pytest.mark.parametrize("key", ["lr-decay-version=1", "lr-wsd-decay-fraction=0.2"])
def test_a_setting_of_another_schedule_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(ProblemsError, match="belongs to lr schedule"):
        resolved(tmp_path, "lr-decay-style=inverse-sqrt", key)
