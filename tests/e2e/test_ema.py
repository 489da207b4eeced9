"""Runs with an average of weights: its closed form in every layout, resumed ones, what is measured and exported."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neox_ema.export import write_average
from neox_gpt.api import build_model, saved_run
from safetensors.torch import load_file

from neox_core.checkpoint.read import CheckpointReader, read_weights
from neox_core.data.samples import open_counted
from neox_core.errors import CheckpointError
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

STEPS, DECAY, ROWS = 6, 0.8, 64
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
split: 80,20,0
peak-tflops: 1
optimizer: {{type: Adam, params: {{lr: 1.0e-2}}}}
gradient_clipping: 1.0
lr-decay-style: constant
warmup: 0.0
hidden-dropout: 0.1
train_batch_size: 4
train-iters: {STEPS}
eval-interval: 3
eval-iters: 2
log-interval: 1
save-interval: 1
extra-save-iters: [0]
monitors: [jsonl]
evaluators: [ema]
ema: {{enabled: true, decay: {DECAY}}}
"""
TWO, ZERO = {"num_gpus": 2}, {"engine": "deepspeed"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"engine": "plain"},
    "tensor": {**TWO, "engine": "plain", "model-parallel-size": 2},
    "zero-0": {**TWO, **ZERO, "zero_optimization": {"stage": 0}},
    "zero-1-bf16": {**TWO, **ZERO, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "zero-2-tensor": {**TWO, **ZERO, "zero_optimization": {"stage": 2}, "model-parallel-size": 2},
    "zero-2": {**TWO, **ZERO, "zero_optimization": {"stage": 2}},
    "pipe": {**TWO, **ZERO, "pipe-parallel-size": 2},
}
STOPPED = ("tensor", "zero-2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, start: Callable[[str, Path, Any], None]) -> Path:
    folder, catalog = tmp_path_factory.mktemp("ema"), load_plugins()
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(folder / "tokens", ROWS)
    draw = np.random.default_rng(0)
    for _ in range(100):
        writer.add_document(draw.integers(0, 16, 33).tolist())
    writer.close()
    (folder / "base.yml").write_text(BASE)

    def case(name: str, keys: dict[str, Any], **more: Any) -> dict[str, Any]:
        keys = {"num_gpus": 1, "save": str(folder / name), "data-path": str(folder / "tokens"), **keys}
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        plan = prepare_run([folder / "base.yml"], sets, catalog=catalog, resume="auto").plan
        file = folder / f"{name}-{len(list(folder.glob('*.run')))}.run"
        write_runfile(plan, file)
        return {"file": str(file), "ranks": plan.cluster.world_size, **more}

    off = {"ema.enabled": False, "evaluators": []}
    cases = [case(name, keys) for name, keys in LAYOUTS.items()]
    for name in STOPPED:
        cases += [case(f"{name}-again", LAYOUTS[name], kill=["save", 3]), case(f"{name}-again", LAYOUTS[name])]
    cases.append(case("without", {**LAYOUTS["plain"], **off}))
    start("guarded.py", folder, cases)
    shutil.copytree(folder / "zero-2/step-00000003", folder / "moved/step-00000003")
    shutil.copytree(folder / "plain/step-00000003", folder / "paused/step-00000003")
    cases = [case("moved", LAYOUTS["tensor"]), case("paused", {**LAYOUTS["plain"], **off, "exit-interval": 5})]
    cases.append(case("paused", LAYOUTS["plain"]))
    start("guarded.py", folder, cases)
    return folder


def folder_of(run: Path, step: int = STEPS) -> Path:
    return run / f"step-{step:08d}"


def exact(runs: list[Path], first: int = 0) -> dict[str, torch.Tensor]:
    """In float64, from the weights that the checkpoints of each step hold; first: the step at which it begins."""
    total: dict[str, torch.Tensor] = {}
    for step in range(first, STEPS + 1):
        here = next(folder_of(run, step) for run in runs if folder_of(run, step).exists())
        reader = CheckpointReader(here)
        share = DECAY ** (STEPS - step) * (1.0 if step == first else 1 - DECAY)
        for name in reader.shapes("weight"):
            weight = reader.tensor(reader.master_kind(name), name).double()
            total[name] = total.get(name, 0) + share * weight
    return total


def assert_close(run: Path, wanted: dict[str, torch.Tensor]) -> None:
    reader = CheckpointReader(folder_of(run))
    assert wanted.keys() == reader.state_names().keys()
    for name, each in wanted.items():
        torch.testing.assert_close(reader.tensor("state", name, "ema").double(), each, rtol=0, atol=2e-7)


def values(run: Path, name: str) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[name] for line in lines if name in line}


def assert_same_bits(one: Path, other: Path, *, but: str | None = None) -> None:
    first, second = CheckpointReader(folder_of(one)), CheckpointReader(folder_of(other))
    for name in first.shapes("weight"):
        assert first.tensor(first.master_kind(name), name).equal(second.tensor(second.master_kind(name), name)), name
        states = {*first.states(name)} - {but}
        assert states == {*second.states(name)} - {but}
        for state in states:
            assert first.tensor("state", name, state).equal(second.tensor("state", name, state)), (name, state)


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_the_sum_over_all_steps(name: str, runs: Path) -> None:
    assert_close(runs / name, exact([runs / name]))


@pytest.mark.parametrize("name", STOPPED)
def test_a_killed_run_ends_on_the_same_bits(name: str, runs: Path) -> None:
    assert_same_bits(runs / name, runs / f"{name}-again")
    assert values(runs / name, "valid_ema_loss") == values(runs / f"{name}-again", "valid_ema_loss")


def test_training_is_that_without_an_average(runs: Path) -> None:
    assert_same_bits(runs / "plain", runs / "without", but="ema")
    assert values(runs / "plain", "loss") == values(runs / "without", "loss")


def test_a_run_on_other_ranks_continues_the_average(runs: Path) -> None:
    assert_close(runs / "moved", exact([runs / "moved", runs / "zero-2"]))


def test_after_steps_without_it_the_average_starts_again(runs: Path) -> None:
    assert_close(runs / "paused", exact([runs / "paused"], first=5))
    with pytest.raises(CheckpointError, match="its average is not of step 5: a run without ema wrote it"):
        write_average(folder_of(runs / "paused", 5), runs / "stale")
    with pytest.raises(CheckpointError, match="its run kept no average"):
        write_average(runs / "without", runs / "stale")
    assert not (runs / "stale").exists()


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_evaluated_and_exported(name: str, runs: Path) -> None:
    """The loss of the exported weights, computed in float64 from the samples of the run, is what the run measured."""
    out = runs / f"{name}-averaged"
    write_average(runs / name, out, file_bytes=1 << 10)
    wanted, weights = exact([runs / name]), read_weights(out)
    bf16 = "bf16" in name
    for each, weight in weights.items():
        torch.testing.assert_close(weight.double(), wanted[each], rtol=2**-8 if bf16 else 0, atol=2e-7)
    catalog = load_plugins()
    _, plan = saved_run(out, catalog)
    context = BuildContext(torch.device("cpu"), torch.float64, Groups(None, None, 0, 1), seed=1)
    model: Any = build_model(plan.model, ROWS, context).eval()
    model.load_state_dict({each: weight.double() for each, weight in weights.items()}, strict=False)
    samples = open_counted(plan, "valid")
    losses = []
    for index in range(2 * 4):
        row = np.empty(17, dtype=np.int64)
        samples.read(index, row)
        tokens = torch.from_numpy(row)[None]
        with torch.no_grad():
            logits = model.logits(tokens[:, :-1])
        losses.append(float(torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])))
    measured = values(runs / name, "valid_ema_loss")[STEPS]
    assert math.isclose(measured, sum(losses) / len(losses), abs_tol=2e-2 if bf16 else 2e-6)
    assert abs(measured - values(runs / name, "valid_loss")[STEPS]) > 1e-4


def test_the_commands_write_a_published_model_of_it(runs: Path) -> None:
    averaged, published = runs / "by-command", runs / "hf"
    neox = [sys.executable, "-m", "neox_core", "checkpoint"]
    command = [*neox, "average", str(runs / "plain"), "--out", str(averaged), "--json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == {"wrote": str(folder_of(averaged))}
    subprocess.run([*neox, "export-hf", str(averaged), "--out", str(published)], check=True)
    (table,) = [
        tensor
        for file in published.glob("*.safetensors")
        for name, tensor in load_file(file).items()
        if name.endswith("embed_in.weight")
    ]
    torch.testing.assert_close(table.double(), exact([runs / "plain"])["embedding.weight"], rtol=0, atol=2e-7)
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (again.returncode, again.stderr.count("exists already")) == (5, 1)
