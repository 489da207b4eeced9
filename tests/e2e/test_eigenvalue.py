"""Runs that measure curvature: in every layout the eigenvalue of the explicit Hessian, with the run left as it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neox_gpt.api import build_model, saved_run
from torch.nn.attention import SDPBackend, sdpa_kernel

from neox_core.checkpoint.read import CheckpointReader, read_weights
from neox_core.data.samples import open_counted
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

STEPS, ROWS, BATCH = 4, 16, 4
BASE = f"""
device: cpu
num-layers: 2
hidden-size: 4
num-attention-heads: 2
seq-length: 8
max-position-embeddings: 8
pos-emb: rotary
num-workers: 0
padded-vocab-size: {ROWS}
split: 80,20,0
peak-tflops: 1
optimizer: {{type: Adam, params: {{lr: 3.0e-2}}}}
lr-decay-style: constant
warmup: 0.0
hidden-dropout: 0.1
train_batch_size: {BATCH}
train-iters: {STEPS}
eval-interval: 100
log-interval: 1
save-interval: 1
monitors: [jsonl]
eigenvalue: {{enabled: true, gas_boundary_resolution: 2, tol: 1.0e-7, max_iter: 2000}}
"""
TWO, ZERO = {"num_gpus": 2}, {"engine": "deepspeed"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"engine": "plain"},
    "recomputed": {"engine": "plain", "checkpoint-activations": True},
    "autocast": {"engine": "plain", "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "plain-2": {**TWO, "engine": "plain"},
    "tensor": {**TWO, "engine": "plain", "model-parallel-size": 2},
    "zero-0": {**TWO, **ZERO, "zero_optimization": {"stage": 0}},
    "zero-1-bf16": {**TWO, **ZERO, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "zero-2": {**TWO, **ZERO, "zero_optimization": {"stage": 2}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, start: Callable[[str, Path, Any], None]) -> Path:
    folder, catalog = tmp_path_factory.mktemp("eigenvalue"), load_plugins()
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(folder / "tokens", ROWS)
    draw = np.random.default_rng(0)
    for _ in range(100):
        writer.add_document(draw.integers(0, ROWS, 33).tolist())
    writer.close()
    (folder / "base.yml").write_text(BASE)

    def case(name: str, keys: dict[str, Any], **more: Any) -> dict[str, Any]:
        keys = {"num_gpus": 1, "save": str(folder / name), "data-path": str(folder / "tokens"), **keys}
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        plan = prepare_run([folder / "base.yml"], sets, catalog=catalog, resume="auto").plan
        file = folder / f"{name}-{len(list(folder.glob('*.run')))}.run"
        write_runfile(plan, file)
        return {"file": str(file), "ranks": plan.cluster.world_size, **more}

    cases = [case(name, keys) for name, keys in LAYOUTS.items()]
    cases += [case(f"{name}-without", {**LAYOUTS[name], "eigenvalue.enabled": False}) for name in ("plain", "zero-2")]
    cases += [case("zero-2-again", LAYOUTS["zero-2"], kill=["save", 3]), case("zero-2-again", LAYOUTS["zero-2"])]
    start("guarded.py", folder, cases)
    return folder


def values(run: Path, name: str) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[name] for line in lines if name in line}


def exact(run: Path, step: int, layer: int) -> float:
    """By the Hessian of the loss in float64, from the weights of a checkpoint and the samples of its last step."""
    folder = run / f"step-{step:08d}"
    _, plan = saved_run(folder, load_plugins())
    context = BuildContext(torch.device("cpu"), torch.float64, Groups(None, None, 0, 1), seed=1)
    model: Any = build_model(plan.model, ROWS, context).eval()
    model.load_state_dict({name: each.double() for name, each in read_weights(folder).items()}, strict=False)
    samples = open_counted(plan, "train")
    rows = np.empty((BATCH, 9), dtype=np.int64)
    for place, row in enumerate(rows):
        samples.read((step - 1) * BATCH + place, row)
    tokens = torch.from_numpy(rows)
    names = [name for name, _ in model.named_parameters() if name.startswith(f"layers.{layer}.")]
    shapes = [model.get_parameter(name).shape for name in names]
    point = torch.cat([model.get_parameter(name).detach().reshape(-1) for name in names])

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> torch.Tensor:
            logits = self.model(lambda run: run(tokens[:, :-1]).logits(), routing=None)
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        given = {f"model.{name}": part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        found: torch.Tensor = torch.func.functional_call(Loss(), given, ())
        return found

    with sdpa_kernel(SDPBackend.MATH):
        hessian: Any = torch.autograd.functional.hessian(loss, point, vectorize=True)
    return float(max(torch.linalg.eigvalsh(hessian).tolist(), key=abs))


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_that_of_the_explicit_hessian(name: str, runs: Path) -> None:
    for layer in (0, 1):
        measured = values(runs / name, f"eigenvalue_{layer}")
        assert sorted(measured) == [2, 4]
        for step in (2, 4):
            assert measured[step] == pytest.approx(exact(runs / name, step, layer), rel=1e-4), (step, layer)


@pytest.mark.parametrize("name", ["plain", "zero-2"])
def test_the_run_is_the_one_that_measures_nothing(name: str, runs: Path) -> None:
    assert values(runs / name, "loss") == values(runs / f"{name}-without", "loss")
    one, other = (CheckpointReader(runs / each / f"step-{STEPS:08d}") for each in (name, f"{name}-without"))
    for weight in one.shapes("weight"):
        assert one.tensor("weight", weight).equal(other.tensor("weight", weight)), weight


def test_a_killed_run_measures_the_same(runs: Path) -> None:
    assert values(runs / "zero-2", "eigenvalue_1") == values(runs / "zero-2-again", "eigenvalue_1")
