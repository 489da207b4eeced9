"""ScaleNorm (Nguyen and Salazar 2019, arXiv:1910.05895), forward and backward, with a residual added before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import MAX_WIDTH, SCALE_NORM
from neox_triton.examples import Size, draw, norm_input
from neox_triton.kernel import TritonKernel
from neox_triton.norm import Norm


@triton.jit
def _forward(x_ptr, other_ptr, y_ptr, total_ptr, weight_ptr, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(other_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        narrow = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + start + column, narrow, mask=inside)
        x = narrow.to(tl.float32)
    weight = tl.load(weight_ptr).to(tl.float32)
    length = tl.maximum(tl.sqrt_rn(tl.sum(x * x, 0)), eps)
    tl.store(y_ptr + start + column, (x * (weight / length)).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad_ptr,
    grad_total_ptr,
    x_ptr,
    dx_ptr,
    weight_ptr,
    dweight_ptr,
    num_rows,
    width,
    per_program,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr).to(tl.float32)
    dweight = 0.0
    for step in range(per_program):
        row = program * per_program + step
        place = row * width + column
        there = (column < width) & (row + column * 0 < num_rows)
        x = tl.load(x_ptr + place, mask=there, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + place, mask=there, other=0.0).to(tl.float32)
        norm = tl.sqrt_rn(tl.sum(x * x, 0))
        length = tl.maximum(norm, eps)
        along = tl.sum(grad * x, 0) / length
        # Below eps the length is constant, and above it its slope along x is x / length.
        slope = tl.where(norm >= eps, along / length / length, 0.0)
        dx = weight * (grad / length - x * slope)
        if ADD:
            dx += tl.load(grad_total_ptr + place, mask=there, other=0.0).to(tl.float32)
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=there)
        dweight += along
    tl.store(dweight_ptr + program, dweight)


NORM = Norm(_forward, _backward, SCALE_NORM, parted=False)


def scale_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """The op, as `neox_norms.scalenorm.scale_norm`: x [..., dim], weight [1] -> as x; with a residual also the sum."""
    return NORM(x, (weight,), eps, residual)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    x, weight = norm_input(dtype, device, size)[0], draw(1, dtype=dtype, device=device)
    yield x, weight, 1e-8
    yield x, weight, 1e-8, draw(*x.shape, dtype=dtype, device=device)


KERNEL = TritonKernel(
    scale_norm,
    _cases,
    max_width=MAX_WIDTH,
    max_bytes=2**15,  # wider rows of fp32 spill
    tiling=SCALE_NORM,
)
