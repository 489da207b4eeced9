"""An optimizer steps once, on little, before a run: what breaks its contract is then named by its plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_core.errors import PluginError

if TYPE_CHECKING:
    from neox_core.plan.runfile import ComponentRef


def probe_optimizer(reference: ComponentRef, device: torch.device, *, exchanges: bool, whole: bool) -> None:
    """One step on two small parameters. Raises PluginError for state that no checkpoint could hold.

    exchanges: it takes the process group of the data-parallel ranks, here of one. whole: it looks at whole parameters,
    and may have a number for each index of a dimension.
    """
    if device.type == "meta":
        return
    weights = [nn.Parameter(torch.ones(size, device=device)) for size in ((4, 6), (7,))]
    with torch.random.fork_rng(devices=[]):
        groups = [{"params": weights, "weight_decay": 0.0}]
        optimizer = reference.make(groups, **({"group": None} if exchanges else {}))
        require_optimizer(reference, optimizer)
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.5)
        with reference.blamed():
            optimizer.step()
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


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
