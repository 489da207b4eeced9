"""Optimizers of torch, made of their settings."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from attrs import asdict


def _make(cls: type[torch.optim.Optimizer], params: Iterable[dict[str, Any]], settings: Any) -> torch.optim.Optimizer:
    return cls(params, **asdict(settings))  # type: ignore[call-arg]


sgd = partial(_make, torch.optim.SGD)
adagrad = partial(_make, torch.optim.Adagrad)
rmsprop = partial(_make, torch.optim.RMSprop)
adadelta = partial(_make, torch.optim.Adadelta)
adamax = partial(_make, torch.optim.Adamax)
nadam = partial(_make, torch.optim.NAdam)
radam = partial(_make, torch.optim.RAdam)
