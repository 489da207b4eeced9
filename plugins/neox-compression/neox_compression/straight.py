"""Functions whose gradient is that of their input, since rounding has no useful one (arXiv:1308.3432)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def straight(given: Tensor, value: Tensor) -> Tensor:
    """`value`, with the gradient going to `given`, of the same shape and dtype."""
    found: Tensor = _Straight.apply(given, value)
    return found


class _Beside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(other)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (other,) = ctx.saved_tensors
        return grad, torch.zeros_like(other)


def beside(value: Tensor, other: Tensor) -> Tensor:
    """`value`, with a gradient of zero for `other`: an optimizer steps all parameters equally often."""
    found: Tensor = _Beside.apply(value, other)
    return found
