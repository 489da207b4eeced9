"""Matrix products of groups of rows, each with a matrix of its own."""

from __future__ import annotations

from typing import Any

import torch
from neox_gpt.api import linear
from torch import Tensor
from torch.nn import functional as F

_GROUPED_MM: Any = getattr(F, "grouped_mm", None)


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`x @ weight[g].T` for the rows of each group g, differentiable and under autocast's rule.

    x: [rows, inputs], the groups one after the other. weight: [groups, outputs, inputs]. ends: int32 [groups], the row
    after the last one of each group. Returns [rows, outputs]; rows after the last group are 0.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
    result: Tensor = _grouped(x, weight, ends)
    return result


@torch.library.custom_op("neox_moe::grouped_linear", mutates_args=())
def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    rows, (groups, outputs, _) = x.shape[0], weight.shape
    if _on_device(x, weight):
        grouped: Tensor = _GROUPED_MM(x, weight.mT, offs=ends)
        return grouped.masked_fill_(torch.arange(rows, device=x.device)[:, None] >= ends[-1], 0)
    result = x.new_empty(rows, outputs)
    start = 0
    with torch.no_grad():
        for group, end in zip(range(groups), ends.tolist(), strict=True):
            if end > start:
                result[start:end] = linear(x[start:end], weight[group])
            start = end
    result[start:] = 0
    return result


@torch.library.custom_op("neox_moe::grouped_outer", mutates_args=())
def _outer(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """`y.T @ x` of the rows of each group: [groups, columns of y, columns of x]."""
    if _on_device(x, y):
        grouped: Tensor = _GROUPED_MM(y.T, x, offs=ends)
        return grouped
    result = x.new_zeros(ends.shape[0], y.shape[1], x.shape[1])
    start = 0
    with torch.no_grad():
        for group, end in enumerate(ends.tolist()):
            if end > start:
                result[group] = linear(y[start:end].T, x[start:end].T)
            start = end
    return result


def _on_device(x: Tensor, other: Tensor) -> bool:
    """Whether torch has one kernel for all groups: in bfloat16 on a GPU, for sides that are multiples of 16 bytes.

    Elsewhere the groups are multiplied one after the other, and a GPU's loop waits for their lengths.
    """
    sides = (x.shape[-1], other.shape[-1], other.shape[-2] if other.dim() == 3 else 8)
    return (
        _GROUPED_MM is not None
        and x.device.type == "cuda"
        and x.dtype == other.dtype == torch.bfloat16
        and all(side % 8 == 0 for side in sides)
    )


@_grouped.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_outer.register_fake
def _(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], y.shape[1], x.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    grad = grad.contiguous()
    of_x = _grouped(grad, weight.mT, ends) if ctx.needs_input_grad[0] else None
    of_weight = _outer(grad, x, ends) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None


_grouped.register_autograd(_backward, setup_context=_keep)
