"""SwiGLU: `value * SiLU(gate)`, value and gate side by side (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import COLUMN_WARPS, COLUMNS
from neox_triton.examples import gated_input
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, rows


@triton.jit
def _forward(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x_ptr + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    active = gate * tl.sigmoid(gate)
    tl.store(y_ptr + row * width + column, (value * active).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad_ptr, x_ptr, dx_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = row * 2 * width + column
    grad = tl.load(grad_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + place + width, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    active = gate * share
    slope = share * (1.0 + gate * (1.0 - share))
    tl.store(dx_ptr + place, (grad * active).to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dx_ptr + place + width, (grad * value * slope).to(dx_ptr.dtype.element_ty), mask=inside)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        flat, width = rows(x), x.shape[-1] // 2
        y = torch.empty(flat.shape[0], width, dtype=x.dtype, device=x.device)
        block = min(COLUMNS, block_of(width))
        grid = (flat.shape[0], triton.cdiv(width, block))
        launch(_forward, grid, flat, y, width, BLOCK=block, warps=COLUMN_WARPS)
        ctx.save_for_backward(flat)
        ctx.shape = x.shape
        return y.view(*x.shape[:-1], width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (flat,) = ctx.saved_tensors
        width = flat.shape[1] // 2
        dx = torch.empty_like(flat)
        block = min(COLUMNS, block_of(width))
        grid = (flat.shape[0], triton.cdiv(width, block))
        launch(_backward, grid, rows(grad), flat, dx, width, BLOCK=block, warps=COLUMN_WARPS)
        return dx.view(ctx.shape)


def swiglu(x: Tensor) -> Tensor:
    """The op, as `neox_activations.gated.swiglu`: x [..., 2 * width] -> [..., width]."""
    return _SwiGLU.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def _cases(dtype: torch.dtype, device: torch.device, large: bool) -> Iterator[tuple[Any, ...]]:
    yield (gated_input(dtype, device, large),)


KERNEL = TritonKernel(swiglu, _cases)
