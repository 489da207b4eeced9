"""ScaleNorm (Nguyen and Salazar 2019, arXiv:1910.05895), forward and backward, with a residual added before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import MAX_WIDTH, warps_of
from neox_triton.examples import draw, norm_input
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, like, rows


@triton.jit
def _forward(x_ptr, other_ptr, weight_ptr, y_ptr, sum_ptr, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(other_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        narrow = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + start + column, narrow, mask=inside)
        x = narrow.to(tl.float32)
    weight = tl.load(weight_ptr).to(tl.float32)
    length = tl.maximum(tl.sqrt_rn(tl.sum(x * x, 0)), eps)
    tl.store(y_ptr + start + column, (x * (weight / length)).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad_ptr,
    grad_sum_ptr,
    x_ptr,
    weight_ptr,
    dx_ptr,
    dweight_ptr,
    width,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    place = row * width + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr).to(tl.float32)
    norm = tl.sqrt_rn(tl.sum(x * x, 0))
    length = tl.maximum(norm, eps)
    along = tl.sum(grad * x, 0) / length
    # Below eps the length is constant, and above it its slope along x is x / length.
    slope = tl.where(norm >= eps, along / length / length, 0.0)
    dx = weight * (grad / length - x * slope)
    if ADD:
        dx += tl.load(grad_sum_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dweight_ptr + row, along)


class _ScaleNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, eps: float, other: Tensor | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        flat, width = rows(x), x.shape[-1]
        total = flat if other is None else torch.empty_like(flat, dtype=like(x, other))
        y = torch.empty_like(total)
        block = block_of(width)
        launch(
            _forward,
            (flat.shape[0],),
            flat,
            flat if other is None else rows(other),
            weight,
            y,
            total,
            width,
            eps,
            ADD=other is not None,
            BLOCK=block,
            warps=warps_of(block),
        )
        ctx.save_for_backward(total, weight)
        ctx.options = eps, x.dtype, None if other is None else other.dtype, x.shape
        return y.view(x.shape) if other is None else (y.view(x.shape), total.view(x.shape))

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_sum: Tensor | None = None) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        eps, dtype, other_dtype, shape = ctx.options
        num_rows, width = total.shape
        dx = torch.empty_like(total)
        partial = torch.empty(num_rows, dtype=torch.float32, device=total.device)
        block = block_of(width)
        launch(
            _backward,
            (num_rows,),
            rows(grad),
            total if grad_sum is None else rows(grad_sum),
            total,
            weight,
            dx,
            partial,
            width,
            eps,
            ADD=grad_sum is not None,
            BLOCK=block,
            warps=warps_of(block),
        )
        dx = dx.view(shape)
        added = None if other_dtype is None else dx.to(other_dtype)
        return dx.to(dtype), partial.sum().to(weight.dtype).view(1), None, added


def scale_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """The op, as `neox_norms.scalenorm.scale_norm`: x [..., dim], weight [1] -> as x; with a residual also the sum."""
    return _ScaleNorm.apply(x, weight, eps, residual)  # type: ignore[no-any-return, no-untyped-call]


def _cases(dtype: torch.dtype, device: torch.device, large: bool) -> Iterator[tuple[Any, ...]]:
    x, weight = norm_input(dtype, device, large)[0], draw(1, dtype=dtype, device=device)
    yield x, weight, 1e-8
    yield x, weight, 1e-8, draw(*x.shape, dtype=dtype, device=device)


KERNEL = TritonKernel(scale_norm, _cases, max_width=MAX_WIDTH)
