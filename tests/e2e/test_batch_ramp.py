"""Runs whose batch grows: samples keep their order, layouts their losses, a stopped run its bits."""

import json
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neox_core.checkpoint.read import CheckpointReader
from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

SIZES = [4, 4, 4, 8, 8, 12, 16, 16]
"""Of [4, 4, 36] to 16: 3 increments of 12 samples each."""
STEPS, ROWS = len(SIZES), 64
BASE = f"""
device: cpu
num-layers: 2
hidden-size: 16
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
pos-emb: rotary
num-workers: 0
padded-vocab-size: {ROWS}
split: 90,10,0
peak-tflops: 1
optimizer: {{type: Adam, params: {{lr: 1.0e-2}}}}
gradient_clipping: 1.0
lr-decay-style: constant
warmup: 0.0
hidden-dropout: 0.1
train_batch_size: 16
train_micro_batch_size_per_gpu: 2
rampup-batch-size: [4, 4, 36]
train-iters: {STEPS}
eval-iters: 0
log-interval: 1
save-interval: 1
monitors: [jsonl]
"""
TWO, ZERO = {"num_gpus": 2}, {"engine": "deepspeed"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"engine": "plain"},
    "plain-2": {**TWO, "engine": "plain"},
    "zero-0": {**ZERO, "zero_optimization": {"stage": 0}},
    "zero-2": {**TWO, **ZERO, "zero_optimization": {"stage": 2}},
    "pipe": {**TWO, **ZERO, "pipe-parallel-size": 2},
}
STOPPED = ("plain", "zero-2")


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder, self.catalog, self.cases = folder, load_plugins(), 0
        entry = self.catalog.registry.find("data backend", "mmap")
        writer = entry.load()(entry.component.settings()).create(folder / "tokens", ROWS)
        draw = np.random.default_rng(0)
        for _ in range(150):
            writer.add_document(draw.integers(0, 32, 33).tolist())
        writer.close()
        (folder / "base.yml").write_text(BASE)

    def plan(self, name: str, keys: dict[str, Any]) -> Any:
        keys = {"num_gpus": 1, "save": str(self.folder / name), "data-path": str(self.folder / "tokens"), **keys}
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        return prepare_run([self.folder / "base.yml"], sets, catalog=self.catalog, resume="auto").plan

    def case(self, name: str, keys: dict[str, Any], **more: Any) -> dict[str, Any]:
        plan = self.plan(name, keys)
        self.cases += 1
        file = self.folder / f"run-{self.cases}" / "run.json"
        write_runfile(plan, file)
        return {"file": str(file), "ranks": plan.cluster.world_size, **more}

    def losses(self, name: str) -> list[float]:
        lines = map(json.loads, (self.folder / name / "metrics.jsonl").read_text().splitlines())
        return list({line["step"]: line["loss"] for line in lines if "loss" in line}.values())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, start: Callable[[str, Path, Any], None]) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("ramp"))
    cases = [lab.case(name, keys) for name, keys in LAYOUTS.items()]
    for name in STOPPED:
        keys = LAYOUTS[name]
        cases += [lab.case(f"{name}-again", {**keys, "exit-interval": 4}), lab.case(f"{name}-again", keys)]
    cases.append(lab.case("without", {"engine": "plain", "rampup-batch-size": None}))
    start("guarded.py", lab.folder, cases)
    shutil.copytree(lab.folder / "zero-2/step-00000004", lab.folder / "moved/step-00000004")
    start("guarded.py", lab.folder, [lab.case("moved", LAYOUTS["plain"])])
    return lab


def test_the_samples_are_those_of_a_run_without_it_in_their_order(lab: Lab) -> None:
    def seen(run: int) -> list[list[Any]]:
        return [json.loads(line) for line in (lab.folder / f"run-{run}/seen.jsonl").read_text().splitlines()]

    steps, without = seen(1), seen(lab.cases - 1)
    assert [len(step) for step in steps] == SIZES
    assert list(chain(*steps)) == list(chain(*without))[: sum(SIZES)]


def test_every_layout_has_the_same_losses(lab: Lab) -> None:
    wanted = lab.losses("plain")
    assert len(wanted) == STEPS
    for name in (*LAYOUTS, "moved"):
        found = lab.losses(name)
        assert np.abs(np.array(found) - wanted[-len(found) :]).max() < 1e-5, name


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_ends_on_the_same_bits(name: str, lab: Lab) -> None:
    one, other = (CheckpointReader(lab.folder / each / f"step-{STEPS:08d}") for each in (name, f"{name}-again"))
    for weight in one.shapes("weight"):
        assert one.tensor("weight", weight).equal(other.tensor("weight", weight))
        for state in one.states(weight):
            assert one.tensor("state", weight, state).equal(other.tensor("state", weight, state))
    assert one.state()["state"] == other.state()["state"]
    assert one.state()["state"]["consumed_samples"] == sum(SIZES)
    assert one.state()["state"]["consumed_tokens"] == 16 * sum(SIZES)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rampup-batch-size": [5, 4, 36]}, "5 does not grow to train_batch_size 16 in steps of 4"),
        ({"rampup-batch-size": [16, 4, 36]}, "16 does not grow to train_batch_size 16"),
        ({"rampup-batch-size": [1, 5, 36]}, "2 samples are a micro-batch of each data-parallel rank, and 1 or 5"),
        ({"rampup-batch-size": [4, 0, 36]}, "must be three numbers above 0"),
        ({"rampup-batch-size": [4, 4]}, "rampup-batch-size"),
        ({"rampup-batch-size": [8, 4, 36]}, "has 20 samples in 4 steps, and this run reads 36 in them"),
        ({"rampup-batch-size": None}, "has 20 samples in 4 steps, and this run reads 64 in them"),
        (
            {
                "curriculum_learning": {
                    "enabled": True,
                    "curriculum_type": "seqlen",
                    "min_difficulty": 8,
                    "max_difficulty": 16,
                    "schedule_type": "fixed_linear",
                    "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 8},
                }
            },
            "rampup-batch-size: contradicts",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(keys: dict[str, Any], said: str, lab: Lab) -> None:
    shutil.copytree(lab.folder / "plain/step-00000004", lab.folder / "kept/step-00000004", dirs_exist_ok=True)
    with pytest.raises(ProblemsError) as caught:
        prepare_run(
            [lab.folder / "base.yml"],
            [
                f"{key}={json.dumps(value)}"
                for key, value in {
                    "num_gpus": 1,
                    "engine": "plain",
                    "save": str(lab.folder / "kept"),
                    "data-path": str(lab.folder / "tokens"),
                    **keys,
                }.items()
            ],
            catalog=lab.catalog,
            resume="auto",
            checked=True,
        )
    assert said in str(caught.value)
