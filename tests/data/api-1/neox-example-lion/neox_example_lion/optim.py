"""Lion (Chen et al. 2023, arXiv:2302.06675). Imported by a training process whose config names it."""

from typing import Any

import torch
from attrs import asdict

from neox_example_lion.plugin import LionSettings


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of momentum and gradient; one buffer a parameter, elementwise throughout."""

    def __init__(self, params: Any, settings: LionSettings) -> None:
        super().__init__(params, asdict(settings))

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                direction = torch.lerp(weight.grad, state["momentum"], beta1).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                state["momentum"].lerp_(weight.grad, 1 - beta2)
