"""Optimizers of torch, made of their settings."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from attrs import asdict
from torch import Tensor
from torch.optim.adagrad import adagrad as by_torch


def _make(cls: type[torch.optim.Optimizer], params: Iterable[dict[str, Any]], settings: Any) -> torch.optim.Optimizer:
    return cls(params, **asdict(settings))


class Adagrad(torch.optim.Optimizer):
    """torch's arithmetic, not its class: for that, DeepSpeed's ZeRO makes an object of its own, with one group only."""

    def __init__(self, params: Iterable[dict[str, Any]], **options: Any) -> None:
        super().__init__(params, options)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            states = [self._begun(weight, group["initial_accumulator_value"]) for weight in weights]
            by_torch(
                weights,
                [weight.grad for weight in weights],
                [state["sum"] for state in states],
                [state["step"] for state in states],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                lr_decay=group["lr_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def _begun(self, weight: Tensor, initial: float) -> dict[str, Any]:
        state: dict[str, Any] = self.state[weight]
        if not state:
            state["step"], state["sum"] = torch.zeros(()), torch.full_like(weight, initial)
        return state


sgd = partial(_make, torch.optim.SGD)
adagrad = partial(_make, Adagrad)
rmsprop = partial(_make, torch.optim.RMSprop)
adadelta = partial(_make, torch.optim.Adadelta)
adamax = partial(_make, torch.optim.Adamax)
nadam = partial(_make, torch.optim.NAdam)
radam = partial(_make, torch.optim.RAdam)
