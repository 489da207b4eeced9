"""The backward pass that the softmaxes share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import warps_of
from neox_triton.launch import block_of, launch, rows


@triton.jit
def _backward(grad_ptr, y_ptr, dx_ptr, keys, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < keys
    y = tl.load(y_ptr + row * keys + column, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * keys + column, mask=inside, other=0.0).to(tl.float32)
    dx = y * (grad - tl.sum(grad * y, 0)) * scale
    tl.store(dx_ptr + row * keys + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def softmax_backward(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """The gradient of the scores. y: probabilities [rows, keys]; where one is 0 the score gets none."""
    dx = torch.empty_like(y)
    block = block_of(y.shape[1])
    launch(_backward, (y.shape[0],), rows(grad), y, dx, y.shape[1], scale, BLOCK=block, warps=warps_of(block))
    return dx.view(grad.shape)
