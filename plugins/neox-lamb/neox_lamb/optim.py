"""Lamb (You et al. 2019, arXiv:1904.00962, algorithm 2), on any device.

DeepSpeed's is a CUDA kernel only; the names of the settings and their defaults are its.
"""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from neox_kernels.api import native_for
from torch import Tensor

from neox_lamb.settings import LambSettings

SOURCE = Path(__file__).with_name("step.cpp")


class Lamb(torch.optim.Optimizer):
    """Adam's update, scaled by |weight| / |update| of each parameter, clamped; 1 where either is 0.

    State of a parameter: `step`, `exp_avg`, `exp_avg_sq`.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: LambSettings) -> None:
        super().__init__(params, asdict(settings))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        state["step"] = 0
                        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
                    state["step"] += 1
                    if not (group["fused"] and _compiled(weight, weight.grad, group, state)):
                        _step(weight, weight.grad, group, state)


def _step(weight: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    first, second = state["exp_avg"].lerp_(grad, 1 - beta1), state["exp_avg_sq"]
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    correct1, correct2 = _corrections(group, state)
    update = (first / correct1).div_((second / correct2).sqrt_().add_(group["eps"]))
    update.add_(weight, alpha=group["weight_decay"])
    rate = group["lr"] * _trust(torch.linalg.vector_norm(weight), torch.linalg.vector_norm(update), group)
    weight.sub_(update.mul_(rate))


def _compiled(weight: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Any]) -> bool:
    """A parameter in host memory by compiled code, with nothing of its size beside; False where that cannot be."""
    tensors = (weight, grad, state["exp_avg"], state["exp_avg_sq"])
    library = native_for(SOURCE, *tensors)
    if library is None:
        return False
    moved, slopes, first, second = (c_void_p(each.data_ptr()) for each in tensors)
    count, threads = c_long(weight.numel()), c_int(torch.get_num_threads())
    terms = [c_float(each) for each in (*_corrections(group, state), group["eps"], group["weight_decay"])]
    sums = torch.zeros(2, dtype=torch.float64)
    betas = map(c_float, group["betas"])
    library.lamb_moments(moved, slopes, first, second, c_void_p(sums.data_ptr()), count, *betas, *terms, threads)
    size, length = sums.sqrt()
    rate = group["lr"] * _trust(size, length, group)
    library.lamb_move(moved, first, second, count, c_float(float(rate)), *terms, threads)
    return True


def _corrections(group: dict[str, Any], state: dict[str, Any]) -> tuple[float, float]:
    """What the moments are divided by."""
    if not group["bias_correction"]:
        return 1.0, 1.0
    return 1 - group["betas"][0] ** state["step"], 1 - group["betas"][1] ** state["step"]


def _trust(size: Tensor, length: Tensor, group: dict[str, Any]) -> Tensor:
    """The ratio of the norms of weight and update, within its bounds; 1 where one is 0."""
    ratio = (size / length).clamp(group["min_coeff"], group["max_coeff"])
    return torch.where((size > 0) & (length > 0), ratio, 1.0)
