"""An encoder in layouts of ranks: the losses of one process, and resumed to the bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing import build, load_only
from toy_runs import plan_run

from neox_core.checkpoint.read import CheckpointReader
from neox_core.hooks.loader import load_plugins
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

STEPS, HALFWAY = 6, 3
CONFIG = """
architecture: bert
objective: masked-lm
num-layers: 2
hidden-size: 32
num-attention-heads: 4
seq-length: 32
max-position-embeddings: 32
norm: layernorm
pos-emb: learned
apply-residual-connection-post-layernorm: true
hidden-dropout: 0.1
attention-dropout: 0.1
padded-vocab-size: 64
cls-token-id: 60
sep-token-id: 61
mask-token-id: 62
pad-token-id: 63
data-path: {folder}/toy
data-impl: mmap
split: 90,10,0
num-workers: 0
device: cpu
train_batch_size: 8
optimizer: {{type: Adam, params: {{lr: 0.01, eps: 1.0e-5}}}}
lr-decay-style: constant
train-iters: 6
monitors: [jsonl]
eval-interval: 6
eval-iters: 2
log-interval: 1
save-interval: 3
peak-tflops: 0.1
seed: 7
"""
LAYOUTS = {
    "plain-dp2": ["engine=plain", "num_gpus=2"],
    "dp2z2": ["num_gpus=2", "zero_optimization.stage=2", "checkpoint-activations=true"],
    "dp2z3": ["num_gpus=2", "zero_optimization.stage=3"],
    "tp2": ["num_gpus=2", "model-parallel-size=2"],
    "pp2": ["num_gpus=2", "pipe-parallel-size=2", "gradient_accumulation_steps=2", "eval-iters=4"],
}
AGAIN = {"tp2": "tp2", "dp2z2": "tp2"}
"""Runs that continue from step 3: from which layout, in which."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Callable[[str, Path, Any], None]) -> Path:
    folder, catalog = tmp_path_factory.mktemp("bert"), load_plugins()
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "toy", 64)
    for document in range(60):
        sizes = [3 + (document + each) % 7 for each in range(1 + document % 9)]
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(sum(sizes))], sizes)
    writer.close()
    (folder / "config.yml").write_text(CONFIG.format(folder=folder))

    def planned(name: str, settings: list[str]) -> tuple[int, str]:
        return plan_run(folder / "config.yml", folder / name, settings, catalog)

    runs = {"one": ["engine=plain", "num_gpus=1"], **LAYOUTS}
    start("continued.py", folder, [planned(name, settings) for name, settings in runs.items()])
    again = []
    for first, second in AGAIN.items():
        load = f"load={folder / first / f'step-{HALFWAY:08d}'}"
        again.append(planned(f"{first}-{second}-again", [*LAYOUTS[second], load]))
    start("continued.py", folder, again)
    return folder


def told(folder: Path) -> dict[tuple[int, str], float]:
    """The losses of a run by step and name."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        names = ("loss", "valid_loss", "objective_masked", "objective_pairs")
        found |= {(row["step"], name): row[name] for name in names if name in row}
    return found


@pytest.mark.parametrize("name", [*LAYOUTS, *(f"{first}-{second}-again" for first, second in AGAIN.items())])
def test_equals_one_process(out: Path, name: str) -> None:
    expected, found = told(out / "one"), told(out / name)
    assert {step for step, _ in found} == set(range(4 if name.endswith("again") else 1, STEPS + 1))
    assert {(6, "loss"), (6, "valid_loss"), (6, "objective_masked"), (6, "objective_pairs")} <= set(found)
    assert {key: loss for key, loss in found.items() if abs(loss - expected[key]) > 1e-5} == {}


@pytest.mark.parametrize("name", [first for first, second in AGAIN.items() if first == second])
def test_resumes_to_the_bit(out: Path, name: str) -> None:
    readers = []
    for each in (name, f"{name}-{name}-again"):
        checkpoint = find_checkpoint(out / each)
        assert checkpoint is not None
        readers.append(CheckpointReader(checkpoint))
    pieces = {(piece.kind, piece.name, piece.state) for piece in readers[0].manifest.pieces if piece.kind != "rng"}
    assert [key for key in pieces if not torch.equal(*(each.tensor(*key) for each in readers))] == []
