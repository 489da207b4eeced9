"""The optimizer that a plan names, made over groups of parameters with and without decay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing.plans import example_plan
from torch import nn

from neox_core.errors import PluginError
from neox_core.plan.runfile import ComponentRef, OptimPlan
from neox_core.run.optimizer import build_optimizer, weight_decay_groups

ADAM = ComponentRef(
    "optimizer", "Adam", "neox-adam", "0.1.0", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings"
)


class LikeTorchs(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.norm: Any = nn.LayerNorm(8)
        self.norm.no_weight_decay = {"weight", "bias"}
        self.out = nn.Linear(8, 16, bias=False)


@pytest.fixture
def plan() -> OptimPlan:
    return evolve(example_plan(Path("unused"), ranks=(1,)).optim, optimizer=ADAM)


def test_weight_decay_groups() -> None:
    model = Tiny()
    model.norm.bias.requires_grad_(False)
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = weight_decay_groups(model, 0.1)
    assert [(group["weight_decay"], [names[id(weight)] for weight in group["params"]]) for group in groups] == [
        (0.1, ["embed.weight", "out.weight"]),
        (0.0, ["norm.weight"]),
    ]
    (single,) = weight_decay_groups(model, 0.0)
    assert single["weight_decay"] == 0.0
    assert [names[id(weight)] for weight in single["params"]] == ["embed.weight", "norm.weight", "out.weight"]


def test_an_optimizer_can_tell_tables(plan: OptimPlan) -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 3) for name in ("embedding", "layers", "position", "head", "headed")})
    model.no_weight_decay = set
    build_optimizer(plan, model, None, ("embedding", "position", "head"))
    assert [name for name, weight in model.named_parameters() if weight.is_table and weight.ndim == 2] == [
        "embedding.weight",
        "position.weight",
        "head.weight",
    ]


def test_an_optimizer_must_be_one(plan: OptimPlan) -> None:
    wrong = evolve(plan, optimizer=evolve(ADAM, target="operator:is_", settings_class=None))
    with pytest.raises(PluginError, match="makes a bool, not a torch"):
        build_optimizer(wrong, Tiny())
    torchs = evolve(plan, optimizer=evolve(ADAM, target=f"{__name__}:LikeTorchs"))
    with pytest.raises(PluginError, match=r"optimizer neox-adam:Adam 0\.1\.0: `lr` in its groups is AdamSettings"):
        build_optimizer(torchs, Tiny())
