"""Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2). Elementwise, so flat slices of the parameters do as well."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import c_float, c_long, c_void_p
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from neox_kernels.api import native_for
from torch import Tensor

from neox_lion.settings import LionSettings

SOURCE = Path(__file__).with_name("step.cpp")


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of buffer and gradient. State of a parameter: the buffer, `momentum`."""

    def __init__(self, params: Iterable[dict[str, Any]], settings: LionSettings) -> None:
        super().__init__(params, asdict(settings))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        state["momentum"] = torch.zeros_like(weight)
                    if not (group["fused"] and _one_pass(weight, weight.grad, state["momentum"], group)):
                        _step(weight, weight.grad, state["momentum"], group)


def _step(weight: Tensor, grad: Tensor, buffer: Tensor, group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    direction = torch.lerp(grad, buffer, beta1).sign_()
    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
    buffer.lerp_(grad, 1 - beta2)


def _one_pass(weight: Tensor, grad: Tensor, buffer: Tensor, group: dict[str, Any]) -> bool:
    """A parameter in host memory by compiled code; False where that cannot be."""
    tensors = (weight, grad, buffer)
    library = native_for(SOURCE, *tensors)
    if library is None:
        return False
    numbers = (group["lr"], 1 - group["lr"] * group["weight_decay"], *group["betas"])
    places = (c_void_p(each.data_ptr()) for each in tensors)
    library.lion(*places, c_long(weight.numel()), *map(c_float, numbers), torch.get_num_threads())
    return True
