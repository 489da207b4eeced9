"""A run whose config asks for every kernel that its model and optimizer have an op for, next to the references."""

import json
import time
from pathlib import Path

import pytest
import torch
from neox_author.testing import build, load_only
from neox_author.testing.ports import free_port
from neox_gpt.build import build_model

from neox_core.data.batches import build_batches
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan, noting
from neox_core.run.optimizer import build_optimizer
from neox_core.run.run import run
from neox_core.run.startup import Startup

VOCAB = 24
CONFIG = """
num-layers: 2
hidden-size: 8
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
norm: rmsnorm
pos-emb: rotary
activation: gelu
sparsity: interspersed
sparse_attention: {mode: fixed, block: 16, num_local_blocks: 1, num_global_blocks: 1}
hidden-dropout: 0.1
attention-dropout: 0.1
padded-vocab-size: 24
data-path: toy
split: 1,0,0
eval-iters: 0
num-workers: 0
device: cpu
num_gpus: 1
train_micro_batch_size_per_gpu: 1
optimizer: {type: AdamW, params: {lr: 0.03}}
lr-decay-style: constant
train-iters: 2
peak-tflops: 1
log-interval: 1
save-interval: 100
"""
FUSED = """
rmsnorm-fusion: true
rope-fusion: true
bias-gelu-fusion: true
bias-dropout-fusion: true
scaled-upper-triang-masked-softmax-fusion: true
kernels: {cross_entropy: triton, block_sparse_attention: triton, adam_step: triton}
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    monkeypatch.chdir(tmp_path)
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(tmp_path / "toy", VOCAB)
    writer.add_document([3 * place % 20 for place in range(200)])
    writer.close()
    for name, text in {"plain.yml": CONFIG, "fused.yml": FUSED}.items():
        Path(name).write_text(text)
    Path("out").mkdir()
    return prepare_run([Path("plain.yml"), Path("fused.yml")], ["save=out"]).plan


def by_references(plan: RunPlan) -> list[float]:
    """A loop of torch, with no engine and no kernels."""
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), plan.train.seed)
    model = build_model(plan.model, VOCAB, context).train()
    optimizer = build_optimizer(plan.optim, model)
    losses = []
    batches = build_batches(plan, "train", first_step=0, data_rank=0, data_size=1)
    for step, batch in zip(range(plan.train.train_iters), batches, strict=False):
        loss = model.loss(batch[:, :-1], batch[:, 1:], sample_keys(plan.train.seed, step, 1, "cpu"))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_losses_are_those_of_the_references(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    ledger: set[str] = set()
    noted = noting(plan, ledger)
    run(noted, noted.engine_component.load()[0](noted), Startup(time.time()), ledger)
    rows = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == pytest.approx(by_references(plan), rel=1e-4)
    assert losses[1] < losses[0]
    chosen = json.loads(Path("out/kernels.json").read_text())
    assert {each["chosen"] for each in chosen.values()} == {f"{op}.triton" for op in chosen}
    assert len(chosen) == 8
