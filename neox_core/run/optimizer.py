"""The optimizer of a run, over parameter groups by weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from neox_core.contracts.optim import OptimizerRun, planned_shape
from neox_core.run.check_optimizer import probe_optimizer, require_optimizer

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

    from neox_core.plan.runfile import OptimPlan


def build_optimizer(
    plan: OptimPlan,
    model: nn.Module,
    data_parallel: ProcessGroup | None = None,
    tables: Sequence[str] = (),
    *,
    total_steps: int = 1,
) -> torch.optim.Optimizer:
    """The planned optimizer over the trainable parameters of `model`, at the peak learning rate.

    data_parallel: the ranks between which an optimizer with its own communication exchanges. tables: see
    `contracts.Architecture`. total_steps: length of the run.

    Raises PluginError when the component cannot be loaded, is not a torch optimizer, has no `lr`, or has state that
    a checkpoint cannot hold.
    """
    target, _ = plan.optimizer.load()
    for name, parameter in model.named_parameters():
        parameter.is_table = name.partition(".")[0] in tables
    device = next((parameter.device for _, parameter in model.named_parameters()), torch.device("cpu"))
    takes = signature(target).parameters
    run = OptimizerRun(planned_shape(plan, total_steps), {each: name for name, each in model.named_parameters()})
    more = {name: value for name, value in {"group": data_parallel, "run": run}.items() if name in takes}
    probe_optimizer(plan, device, more)
    optimizer = plan.optimizer.make(weight_decay_groups(model, plan.weight_decay), **more)
    require_optimizer(plan.optimizer, optimizer)
    return optimizer


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in the order of the model: those that decay, then those that do not.

    There is one group when no parameter decays or all do; no group is empty.
    """
    spared = spared_from_decay(model)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not weight_decay:
        return [{"params": [parameter for _, parameter in trainable], "weight_decay": 0.0}]
    groups = [
        {"params": [parameter for name, parameter in trainable if name not in spared], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trainable if name in spared], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def spared_from_decay(model: nn.Module) -> set[str]:
    """Names of the parameters that the modules within `model` declare as `no_weight_decay`."""
    names: set[str] = set()
    for prefix, module in model.named_modules():
        declared = () if module is model else getattr(module, "no_weight_decay", ())
        own = {name for name, _ in module.named_parameters(recurse=False)}
        names |= {f"{prefix}.{name}" for name in own.intersection(declared)}
    return names
