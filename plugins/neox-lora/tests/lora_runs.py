"""A small Llama, with and without adapters, and its training in this process."""

from typing import Any

import torch
from neox_gpt.api import build_model
from neox_plain.api import build_engine

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.stored.state import TrainState
from neox_core.run.optimizer import build_optimizer

CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 4
num-kv-heads: 2
activation: swiglu
intermediate-size: 48
norm: rmsnorm
rms-norm-epsilon-in: mean-square
pos-emb: rotary
no-weight-tying: true
use-bias-in-attn-linear: false
use-bias-in-mlp: false
max-position-embeddings: 16
seq-length: 16
data-path: none
data-impl: mmap
padded-vocab-size: 64
train-iters: 3
train_micro_batch_size_per_gpu: 4
hidden-dropout: 0
attention-dropout: 0
engine: plain
device: cpu
optimizer: {type: Adam, params: {lr: 1e-2}}
"""
ON = ("lora.enabled=true", "lora.rank=3", "lora.alpha=5", "lora.dropout=0.3")
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


def trained(plan: Any, steps: int = 3, context: BuildContext = CONTEXT) -> tuple[Any, Any]:
    """Engine and checkpointer after the steps that the plan has left."""
    model = build_model(plan.model, 64, context)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), context)
    checkpointer = Checkpointer(plan, engine, context)
    state: TrainState = checkpointer.load().state
    while state.step < steps:
        tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(state.step))
        engine.train_step(iter([tokens]), 0.05)
        state.advance(plan)
    checkpointer.save(state)
    engine.close()
    return engine, state
