"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), forward and backward, with a residual added before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import MAX_ROW_BYTES, MAX_WIDTH, RMS_NORM
from neox_triton.examples import Size, draw, norm_input
from neox_triton.kernel import TritonKernel
from neox_triton.norm import Norm


@triton.jit
def _forward(
    x_ptr,
    other_ptr,
    y_ptr,
    total_ptr,
    weight_ptr,
    width,
    eps,
    UNDER: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(other_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        narrow = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + start + column, narrow, mask=inside)
        x = narrow.to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(x * x, 0) / width
    factor = 1.0 / (tl.sqrt_rn(square + eps) if UNDER else tl.sqrt_rn(square) + eps)
    tl.store(y_ptr + start + column, (x * factor * weight).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _row(x_ptr, grad_ptr, weight_ptr, place, column, there):
    """Of some columns of a row: x, the gradient, and the gradient by the weight."""
    x = tl.load(x_ptr + place, mask=there, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=there, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32)
    return x, grad, grad * weight


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
    UNDER: tl.constexpr,
    ADD: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    column = part * PART + at
    inside = (at < PART) & (column < width)
    dweight = tl.zeros([BLOCK], tl.float32)
    for step in range(per_program):
        row = program * per_program + step
        seen = row + at * 0 < num_rows
        squares, along = 0.0, 0.0
        if PARTS > 1:
            for each in range(PARTS):
                columns = each * PART + at
                there = (at < PART) & (columns < width) & seen
                x, _, weighted = _row(x_ptr, grad_ptr, weight_ptr, row * width + columns, columns, there)
                squares += tl.sum(x * x, 0)
                along += tl.sum(weighted * x, 0)
        there = inside & seen
        place = row * width + column
        x, grad, weighted = _row(x_ptr, grad_ptr, weight_ptr, place, column, there)
        if PARTS == 1:
            squares += tl.sum(x * x, 0)
            along += tl.sum(weighted * x, 0)
        square = squares / width
        root = tl.sqrt_rn(square + eps) if UNDER else tl.sqrt_rn(square)
        factor = 1.0 / (root if UNDER else root + eps)
        # The slope of the factor along x is -x * factor^2 / (width * root); at x = 0 it counts as 0.
        slope = tl.where(root > 0.0, factor * factor / (width * root), 0.0)
        dx = weighted * factor - x * (along * slope)
        if ADD:
            dx += tl.load(grad_total_ptr + place, mask=there, other=0.0).to(tl.float32)
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=there)
        dweight += grad * x * factor
    tl.store(dweight_ptr + program * width + column, dweight, mask=inside)


NORM = Norm(_forward, _backward, RMS_NORM)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, under_the_root: bool, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The op, as `neox_norms.rmsnorm.rms_norm`: x [..., dim], weight [dim] -> as x; with a residual also the sum."""
    return NORM(x, (weight,), eps, residual, UNDER=under_the_root)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    x, weight, _ = norm_input(dtype, device, size)
    yield x, weight, 1e-8, False
    yield x, weight, 1e-5, True, draw(*x.shape, dtype=dtype, device=device)


KERNEL = TritonKernel(rms_norm, _cases, max_width=MAX_WIDTH, max_bytes=MAX_ROW_BYTES, tiling=RMS_NORM)
