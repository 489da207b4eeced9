"""Numbers that DeepSpeed 0.19.6, and the Neural Compressor 2.4.1 that it calls, computed on a CPU with their own
functions, and the inputs that they were given.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_gpt.api import FoldedReader, build_model
from neox_plain.api import build_engine
from torch import Tensor

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run
from neox_core.plan.stored.state import TrainState
from neox_core.run.optimizer import build_optimizer


def numbers(seed: int, *shape: int) -> Tensor:
    """The same numbers on any machine: from -3.2 to 3.2, without a pattern."""
    places = torch.arange(math.prod(shape), dtype=torch.int64)
    return (((places * 7919 + seed * 104729) % 2003 - 1001).float() / 317).reshape(shape)


@pytest.fixture(scope="session")
def reference() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        (Path(__file__).parent / "data/deepspeed-0.19.6.json").read_text()
    )
    return found


@pytest.fixture(scope="session")
def snip_reference() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data/neural-compressor-2.4.1.json").read_text())
    return found


@pytest.fixture
def given() -> Callable[..., Tensor]:
    return numbers


CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 4
activation: gelu
norm: rmsnorm
pos-emb: rotary
no-weight-tying: true
max-position-embeddings: 16
seq-length: 16
data-path: none
data-impl: mmap
padded-vocab-size: 64
train-iters: 4
train_micro_batch_size_per_gpu: 4
hidden-dropout: 0
attention-dropout: 0
engine: plain
device: cpu
optimizer: {type: Adam, params: {lr: 1e-2}}
"""
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., Any]:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        return prepare_run(
            [tmp_path / "c.yml"],
            sets if "save=" in " ".join(sets) else (*sets, f"save={tmp_path}/run"),
            catalog=load_plugins(),
            start=False,
        )

    return _resolve


def trained(plan: Any, steps: int = 4, context: BuildContext = CONTEXT, vocab: int = 64) -> Path:
    """The checkpoint after so many steps."""
    model = build_model(plan.model, vocab, context)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), context)
    checkpointer = Checkpointer(plan, engine, context)
    state: TrainState = checkpointer.load().state
    while state.step < steps:
        tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(state.step))
        engine.train_step(iter([tokens]), 0.05)
        state.advance(plan)
    checkpointer.save(state)
    engine.close()
    return Path(plan.checkpoint.save) / f"step-{steps:08d}"


def folded(plan: Any, checkpoint: Path) -> dict[str, Tensor]:
    reader = FoldedReader(checkpoint, plan.model)
    assert reader.plan.changes is None
    return {name: reader.tensor("weight", name) for name in reader.shapes("weight")}


@pytest.fixture(name="trained")
def train() -> Callable[..., Path]:
    return trained


@pytest.fixture(name="folded")
def fold() -> Callable[..., dict[str, Tensor]]:
    return folded


@pytest.fixture
def context() -> BuildContext:
    return CONTEXT
