"""Adam on the host: the parameters may be on a GPU, the state and the arithmetic are not.

With ZeRO's offload the engine's slices are in host memory already, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from neox_adam.host_settings import CPUAdamSettings, CPUTorchAdamSettings


def cpu_torch_adam(params: Iterable[dict[str, Any]], settings: CPUTorchAdamSettings) -> torch.optim.Optimizer:
    """AdamW by torch, on the host."""
    return _kept_on_host(torch.optim.AdamW(params, fused=False, **_options(settings)))


def cpu_adam(params: Iterable[dict[str, Any]], settings: CPUAdamSettings) -> torch.optim.Optimizer:
    """Adam by DeepSpeed's vectorised code, on the host. The first use on a machine compiles it, in about half a minute.

    Raises RuntimeError where there is no compiler.
    """
    from neox_deepspeed.api import cpu_adam as deepspeeds

    optimizer = deepspeeds(params, adamw_mode=settings.adam_w_mode, **_options(settings))

    def begin_anew(optimizer: Any, args: Any, kwargs: Any) -> None:
        # The compiled code multiplies up the powers of the betas from step to step, in single precision, which a
        # resumed run could not repeat to the bit. An object that has seen no step computes them of the step's number.
        options = (settings.lr, *settings.betas, settings.eps, settings.weight_decay, settings.adam_w_mode)
        optimizer.ds_opt_adam.create_adam(optimizer.opt_id, *options, False)

    optimizer.register_step_pre_hook(begin_anew)
    return _kept_on_host(optimizer)


def _options(settings: CPUTorchAdamSettings) -> dict[str, Any]:
    return {
        "lr": settings.lr,
        "betas": settings.betas,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }


def _kept_on_host(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, each step of which is on the host. By hooks: ZeRO asks for the class itself."""
    copies = _HostCopies()
    optimizer.register_step_pre_hook(copies.take)
    optimizer.register_step_post_hook(copies.give_back)
    return optimizer


class _HostCopies:
    """Stand-ins on the host for parameters on other devices, in the optimizer's groups for the length of a step."""

    def __init__(self) -> None:
        self._copies: dict[Tensor, Tensor] = {}  # by parameter, kept from step to step
        self._groups: list[list[Tensor]] = []

    def take(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._groups = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = [self._stand_in(each, optimizer.state) for each in group["params"]]

    def give_back(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, parameters in zip(optimizer.param_groups, self._groups, strict=True):
            for parameter, stand_in in zip(parameters, group["params"], strict=True):
                if stand_in is not parameter:
                    parameter.detach().copy_(stand_in)
                    stand_in.grad = None
                    optimizer.state[parameter] = optimizer.state.pop(stand_in)
            group["params"] = parameters

    def _stand_in(self, parameter: Tensor, state: dict[Any, Any]) -> Tensor:
        if parameter.device.type == "cpu" or parameter.grad is None:
            return parameter
        copy = self._copies.setdefault(parameter, torch.empty(parameter.shape, dtype=torch.float32))
        copy.copy_(parameter.detach())
        copy.grad = parameter.grad.detach().to(copy)
        state[copy] = {name: _here(value) for name, value in state.pop(parameter, {}).items()}
        return copy


def _here(value: Any) -> Any:
    """A loaded state comes back on the device of its parameter."""
    return value.cpu() if isinstance(value, Tensor) else value
