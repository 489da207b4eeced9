"""The optimizer of a run, over parameter groups by weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neox_core.errors import PluginError

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

    from neox_core.plan.runfile import OptimPlan


TABLES = ("embedding", "position", "head")
"""The parts of a model whose matrices are looked up by token or position, or score tokens."""


class DecayAware(Protocol):
    """A model whose parts say which of their parameters weight decay must leave alone."""

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]: ...

    def no_weight_decay(self) -> set[str]: ...


def build_optimizer(
    plan: OptimPlan, model: DecayAware, data_parallel: ProcessGroup | None = None
) -> torch.optim.Optimizer:
    """The planned optimizer over the trainable parameters of `model`, at the peak learning rate.

    data_parallel: the ranks over which an optimizer that asks for them exchanges by itself.

    Raises PluginError when the component cannot be loaded, is no torch optimizer, or has no `lr`.
    """
    target, _ = plan.optimizer.load()
    for name, parameter in model.named_parameters():
        parameter.is_table = name.partition(".")[0] in TABLES  # type: ignore[attr-defined]
    exchange = {"group": data_parallel} if "group" in signature(target).parameters else {}
    optimizer = plan.optimizer.make(weight_decay_groups(model, plan.weight_decay), **exchange)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise plan.optimizer.fault(f"makes a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(isinstance(rate, float | int | torch.Tensor) for rate in rates):
        raise PluginError(
            f"{plan.optimizer.owner}: `lr` in its groups is {rates[0]!r}, not a number",
            hint="it is called as target(params, settings)",
        )
    return optimizer


def weight_decay_groups(model: DecayAware, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in the order of the model: those that decay, then those that do not.

    One group when nothing decays or everything does; no group is empty.
    """
    spared = model.no_weight_decay()
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not weight_decay:
        return [{"params": [parameter for _, parameter in trainable], "weight_decay": 0.0}]
    groups = [
        {"params": [parameter for name, parameter in trainable if name not in spared], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trainable if name in spared], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
