"""A run over the same endless batches, to be stepped and saved by hand."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_deepspeed import api as deepspeed
from neox_plain import api as plain
from torch import Tensor, nn

from neox_core.checkpoint.checkpointer import Checkpointer, Resumed
from neox_core.checkpoint.rng import seed_rank
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import CheckpointPlan, ComponentRef, RunPlan
from neox_core.plan.stored.saved import latest_text, read_sealed, sealed
from neox_core.plan.stored.state import TrainState
from neox_core.run.optimizer import build_optimizer

ADAM = ComponentRef(
    "optimizer", "Adam", "neox-adam", "0.1.0", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings"
)
CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0.1.0", "neox_causal_lm.objective:CausalLM")
LINEAR = ComponentRef(
    *("lr schedule", "linear", "neox-lr", "0.1.0", "neox_lr.schedules:linear", "neox_lr.curve_settings:CurveSettings"),
    {"lr_decay_version": 2},
)
ENGINES = {"deepspeed": deepspeed.build_engine, "plain": plain.build_engine}
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


class Tiny(nn.Module):
    """As much of a model as an engine needs: a loss from tokens, and dropout that draws random numbers."""

    draws, documents, sparse_weights = False, None, ()

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.norm: Any = nn.LayerNorm(width)
        self.norm.no_weight_decay = {"weight", "bias"}
        self.out = nn.Linear(width, 16, bias=False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, compute: Callable[[Any], Tensor], *, routing: None = None) -> Tensor:
        return compute(self.run)

    def run(self, tokens: Tensor) -> WholeLogits:
        return WholeLogits(self.out(nn.functional.dropout(self.norm(self.embed(tokens)), 0.2, self.training)))


class Run:
    """One run over the same endless batches, to be stepped by hand."""

    def __init__(self, plan: RunPlan, width: int = 8) -> None:
        self.plan = plan
        seed_rank(plan.train.seed, 0, CONTEXT.device)
        torch.manual_seed(3)
        model = Tiny(width)
        optimizer = build_optimizer(plan.optim, model)
        self.engine: Any = ENGINES[plan.engine_component.name](plan, model, optimizer, CONTEXT)
        self.checkpointer = Checkpointer(plan, self.engine, CONTEXT)
        self.state = TrainState()
        self.losses: list[float] = []

    def load(self) -> Resumed:
        resumed = self.checkpointer.load()
        self.state = resumed.state
        self.schedule = resumed.schedule
        return resumed

    def steps(self, count: int) -> "Run":
        for _ in range(count):
            batch = torch.randint(16, (2, 9), generator=torch.Generator().manual_seed(self.state.step))
            self.losses.append(float(self.engine.train_step(iter([batch]), lr=0.01)))
            self.state.advance(self.plan)
        return self

    def save(self) -> Path:
        folder = self.checkpointer.save(self.state)
        assert folder is not None
        return folder

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.engine.model.named_parameters()}


def with_checkpoint(plan: RunPlan, **changes: Any) -> RunPlan:
    checkpoint: CheckpointPlan = evolve(plan.checkpoint, **changes)
    return evolve(plan, checkpoint=checkpoint)


def resuming(plan: RunPlan, **changes: Any) -> RunPlan:
    return with_checkpoint(plan, load=plan.checkpoint.save, **changes)


Damage = Callable[[Path], None]


def edit(change: Callable[[dict[str, Any]], object], file: str = "manifest.json") -> Damage:
    """A change of a JSON file by somebody who makes all checksums anew."""

    def damage(folder: Path) -> None:
        manifest, _ = read_sealed(folder / "manifest.json")
        content = manifest if file == "manifest.json" else json.loads((folder / file).read_text())
        change(content)
        if file != "manifest.json":
            data = json.dumps(content).encode()
            (folder / file).write_bytes(data)
            manifest["files"][file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "manifest.json").write_bytes(sealed(manifest))
        (folder.parent / "latest").write_text(latest_text(folder))

    return damage
