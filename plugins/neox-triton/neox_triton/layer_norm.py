"""LayerNorm (Ba et al. 2016, arXiv:1607.06450), forward and backward, with a residual added before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import LAYER_NORM, MAX_ROW_BYTES, MAX_WIDTH
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
    bias_ptr,
    mean_ptr,
    width,
    eps,
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
    mean = tl.sum(x, 0) / width
    tl.store(mean_ptr + tl.program_id(0), mean)
    centred = tl.where(inside, x - mean, 0.0)
    factor = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / width + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    y = centred * factor * weight + bias
    tl.store(y_ptr + start + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _row(x_ptr, grad_ptr, weight_ptr, mean, place, column, there):
    """Of some columns of a row: centred x, the gradient, and the gradient by the weight."""
    x = tl.load(x_ptr + place, mask=there, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=there, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32)
    return tl.where(there, x - mean, 0.0), grad, grad * weight


@triton.jit
def _backward(
    grad_ptr,
    grad_total_ptr,
    x_ptr,
    dx_ptr,
    weight_ptr,
    mean_ptr,
    dweight_ptr,
    dbias_ptr,
    num_rows,
    width,
    per_program,
    eps,
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
    dbias = tl.zeros([BLOCK], tl.float32)
    for step in range(per_program):
        row = program * per_program + step
        seen = row + at * 0 < num_rows
        mean = tl.load(mean_ptr + tl.minimum(row, num_rows - 1))
        squares, whole, along = 0.0, 0.0, 0.0
        if PARTS > 1:
            for each in range(PARTS):
                columns = each * PART + at
                there = (at < PART) & (columns < width) & seen
                centred, _, weighted = _row(x_ptr, grad_ptr, weight_ptr, mean, row * width + columns, columns, there)
                squares += tl.sum(centred * centred, 0)
                whole += tl.sum(weighted, 0)
                along += tl.sum(weighted * centred, 0)
        there = inside & seen
        place = row * width + column
        centred, grad, weighted = _row(x_ptr, grad_ptr, weight_ptr, mean, place, column, there)
        if PARTS == 1:
            squares += tl.sum(centred * centred, 0)
            whole += tl.sum(weighted, 0)
            along += tl.sum(weighted * centred, 0)
        factor = 1.0 / tl.sqrt_rn(squares / width + eps)
        normal = centred * factor
        dx = factor * (weighted - whole / width - normal * (factor * along / width))
        if ADD:
            dx += tl.load(grad_total_ptr + place, mask=there, other=0.0).to(tl.float32)
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=there)
        dweight += grad * normal
        dbias += grad
    tl.store(dweight_ptr + program * width + column, dweight, mask=inside)
    tl.store(dbias_ptr + program * width + column, dbias, mask=inside)


NORM = Norm(_forward, _backward, LAYER_NORM, saves=1)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The op, as `neox_norms.layernorm.layer_norm`: x [..., dim], weight and bias [dim] -> as x; also the sum."""
    return NORM(x, (weight, bias), eps, residual)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    x, weight, bias = norm_input(dtype, device, size)
    yield x, weight, bias, 1e-5
    yield x, weight, bias, 1e-5, draw(*x.shape, dtype=dtype, device=device)


KERNEL = TritonKernel(layer_norm, _cases, max_width=MAX_WIDTH, max_bytes=MAX_ROW_BYTES, tiling=LAYER_NORM)
