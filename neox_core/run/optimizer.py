"""The optimizer of a run, over parameter groups by weight decay; before, it steps once on little: faults are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from neox_core.contracts.optim import OptimizerRun, planned_shape
from neox_core.errors import PluginError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_core.plan.runfile import ComponentRef, OptimPlan


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

    Raises PluginError for what cannot be loaded, is not a torch optimizer, has no `lr`, or holds what cannot be saved.
    """
    target, _ = plan.optimizer.load()
    for name, parameter in model.named_parameters():
        parameter.is_table = name.startswith(tuple(f"{each}." for each in tables))
    device = next((parameter.device for _, parameter in model.named_parameters()), torch.device("cpu"))
    takes = signature(target).parameters
    run = OptimizerRun(planned_shape(plan, total_steps), {each: name for name, each in model.named_parameters()})
    more = {name: value for name, value in {"group": data_parallel, "run": run}.items() if name in takes}
    _probe(plan, device, more)
    optimizer = plan.optimizer.make(weight_decay_groups(model, plan.weight_decay), **more)
    _require_optimizer(plan.optimizer, optimizer)
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


def _probe(plan: OptimPlan, device: torch.device, more: Mapping[str, Any]) -> None:
    """One step on two small parameters. Raises PluginError for state that no checkpoint could hold.

    more: what its target takes beside parameters and settings; here the process group of its ranks is that of one.
    """
    if device.type == "meta":
        return
    reference, whole = plan.optimizer, plan.whole_parameters
    weights = [nn.Parameter(torch.ones(size, device=device)) for size in ((4, 6), (7,))]
    more = {**more, **({"group": None} if "group" in more else {})}
    if "run" in more:
        more["run"] = evolve(more["run"], names={weights[0]: "layers.0.first.weight", weights[1]: "norm.weight"})
    with torch.random.fork_rng(devices=[]):
        optimizer = reference.make([{"params": weights, "weight_decay": 0.0}], **more)
        _require_optimizer(reference, optimizer)
        _require_modes(plan, optimizer)
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.5)
        with reference.blamed():
            optimizer.step(*([lambda: torch.zeros(())] if "closure" in plan.uses else []))
    for weight in weights:
        if not bool(weight.isfinite().all()):
            raise reference.fault("a step of finite gradients gives weights that are not finite")
        shapes = {(), tuple(weight.shape)}
        if whole:
            sides = enumerate(weight.shape)
            shapes |= {tuple(length if at == dim else 1 for at in range(weight.ndim)) for dim, length in sides}
        for name, value in optimizer.state.get(weight, {}).items():
            number = isinstance(value, int | float | bool | type(None))
            if not number and not (isinstance(value, Tensor) and tuple(value.shape) in shapes):
                said = f"its state {name!r} of a parameter {list(weight.shape)} is {_shown(value)} after a step"
                raise reference.fault(f"{said}; state is a number, or has the shape of the parameter")


def _require_optimizer(reference: ComponentRef, optimizer: Any) -> None:
    """Raises PluginError for what is not an optimizer, or has no learning rate that a schedule can set."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise reference.fault(f"makes a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(isinstance(rate, float | int | Tensor) for rate in rates):
        said = f"{reference.owner}: `lr` in its groups is {rates[0]!r}, not a number"
        raise PluginError(said, hint="it is called as target(params, settings)")


def _require_modes(plan: OptimPlan, optimizer: Any) -> None:
    """Refuse modes that are declared and missing, or the reverse: nothing would call them."""
    has = all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
    if has != ("modes" in plan.uses):
        said = "has train() and eval(), and its Component" if has else "lacks train() or eval(), and its Component"
        raise plan.optimizer.fault(f"{said} {'does not declare' if has else 'declares'} uses=('modes',)")


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
