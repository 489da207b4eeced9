"""Lamb (You et al. 2019, arXiv:1904.00962, algorithm 2), on any device.

DeepSpeed's is a CUDA kernel only; the names of the settings and their defaults are its.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from neox_core.contracts.optim import blocks
from neox_lamb.plugin import LambSettings


class Lamb(torch.optim.Optimizer):
    """Adam's update, scaled by |weight| / |update| of each parameter, clamped; 1 where either is 0.

    State of a parameter: `step`, `exp_avg`, `exp_avg_sq`.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: LambSettings) -> None:
        options = {
            "lr": settings.lr,
            "betas": settings.betas,
            "eps": settings.eps,
            "weight_decay": settings.weight_decay,
            "bias_correction": settings.bias_correction,
            "max_coeff": settings.max_coeff,
            "min_coeff": settings.min_coeff,
        }
        super().__init__(params, options)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        state["step"] = 0
                        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
                    _step(weight, weight.grad, group, state)


def _step(weight: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    """Two passes: the moments and the norms, then the weights. The update is computed in both rather than kept."""
    beta1, beta2 = group["betas"]
    first, second = state["exp_avg"], state["exp_avg_sq"]
    state["step"] += 1
    corrections = (1.0, 1.0)
    if group["bias_correction"]:
        corrections = (1 - beta1 ** state["step"], 1 - beta2 ** state["step"])
    squares = weight.new_zeros(2, dtype=torch.float64 if weight.device.type == "cpu" else torch.float32)
    for here, slopes, mean, square in blocks(weight, grad, first, second):
        mean.lerp_(slopes, 1 - beta1)
        square.mul_(beta2).addcmul_(slopes, slopes, value=1 - beta2)
        update = _update(here, mean, square, corrections, group)
        squares += torch.stack([torch.linalg.vector_norm(each).square() for each in (here, update)])
    size, length = squares.sqrt()
    ratio = torch.where((size > 0) & (length > 0), (size / length).clamp(group["min_coeff"], group["max_coeff"]), 1.0)
    scale = (ratio * group["lr"]).to(weight)
    for here, mean, square in blocks(weight, first, second):
        here.sub_(_update(here, mean, square, corrections, group).mul_(scale))


def _update(
    weight: Tensor, mean: Tensor, square: Tensor, corrections: tuple[float, float], group: dict[str, Any]
) -> Tensor:
    """Adam's, with the decay in it."""
    update = (square / corrections[1]).sqrt_().add_(group["eps"])
    torch.div(mean, update, out=update)
    if corrections[0] != 1:
        update.div_(corrections[0])
    return update.add_(weight, alpha=group["weight_decay"]) if group["weight_decay"] else update
