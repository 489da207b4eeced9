"""Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2). Elementwise, so flat slices of the parameters do as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from neox_core.contracts.optim import blocks
from neox_lion.plugin import LionSettings


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of buffer and gradient. State of a parameter: the buffer, `momentum`."""

    def __init__(self, params: Iterable[dict[str, Any]], settings: LionSettings) -> None:
        options = {"lr": settings.lr, "betas": settings.betas, "weight_decay": settings.weight_decay}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            kept = 1 - lr * group["weight_decay"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                for weight, grad, buffer in blocks(parameter, parameter.grad, state["momentum"]):
                    if kept != 1:
                        weight.mul_(kept)
                    weight.sub_(torch.lerp(grad, buffer, beta1).sign_(), alpha=lr)
                    buffer.lerp_(grad, 1 - beta2)
