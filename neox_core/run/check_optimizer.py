"""An optimizer steps once, on little, before a run: what breaks its contract is then named by its plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from neox_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neox_core.plan.runfile import ComponentRef, OptimPlan


def probe_optimizer(plan: OptimPlan, device: torch.device, more: Mapping[str, Any]) -> None:
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
        require_optimizer(reference, optimizer)
        _require_modes(plan, optimizer)
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.5)
        with reference.blamed():
            optimizer.step(*([lambda: torch.zeros(())] if "closure" in plan.uses else []))
    for weight in weights:
        shapes = {(), tuple(weight.shape)}
        if whole:
            sides = enumerate(weight.shape)
            shapes |= {tuple(length if at == dim else 1 for at in range(weight.ndim)) for dim, length in sides}
        for name, value in optimizer.state.get(weight, {}).items():
            number = isinstance(value, int | float | bool | type(None))
            if not number and not (isinstance(value, Tensor) and tuple(value.shape) in shapes):
                said = f"its state {name!r} of a parameter {list(weight.shape)} is {_shown(value)} after a step"
                raise reference.fault(f"{said}; state is a number, or has the shape of the parameter")


def require_optimizer(reference: ComponentRef, optimizer: Any) -> None:
    """Raises PluginError for what is not an optimizer, or has no learning rate that a schedule can set."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise reference.fault(f"makes a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(isinstance(rate, float | int | Tensor) for rate in rates):
        raise PluginError(
            f"{reference.owner}: `lr` in its groups is {rates[0]!r}, not a number",
            hint="it is called as target(params, settings)",
        )


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
