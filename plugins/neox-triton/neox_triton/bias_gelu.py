"""GELU of a sum with a bias (Hendrycks and Gimpel 2016, arXiv:1606.08415), exact or by tanh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from attrs import evolve
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import BIAS_GELU, PROGRAMS
from neox_triton.examples import Size, draw, sublayer_output
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, rows


@triton.jit
def _share(x, TANH: tl.constexpr):
    """What GELU multiplies x by."""
    if TANH:  # (1 + tanh(u)) / 2 = sigmoid(2 u)
        return tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:  # noqa: RET505  a constant decides, when the kernel is compiled
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _forward(x_ptr, bias_ptr, y_ptr, width, TANH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + column, (x * _share(x, TANH)).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad_ptr,
    x_ptr,
    bias_ptr,
    dx_ptr,
    dbias_ptr,
    num_rows,
    width,
    per_program,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for step in range(per_program):
        row = program * per_program + step
        place = row * width + column
        there = (column < width) & (row + column * 0 < num_rows)
        x = tl.load(x_ptr + place, mask=there, other=0.0).to(tl.float32) + bias
        grad = tl.load(grad_ptr + place, mask=there, other=0.0).to(tl.float32)
        share = _share(x, TANH)
        if TANH:
            slope = share + x * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        else:
            slope = share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        dx = tl.where(there, grad * slope, 0.0)
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=there)
        dbias += dx
    tl.store(dbias_ptr + program * width + column, dbias, mask=inside)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, by_tanh: bool) -> Tensor:
        flat, bias, width = rows(x), bias.contiguous(), x.shape[-1]
        y = torch.empty_like(flat)
        tile = BIAS_GELU.of(flat)
        block = min(tile.block, block_of(width))
        grid = (flat.shape[0], triton.cdiv(width, block))
        cut: dict[str, Any] = {"BLOCK": block, "warps": tile.warps, "stages": tile.stages}
        launch(_forward, grid, flat, bias, y, width, TANH=by_tanh, **cut)
        ctx.save_for_backward(flat, bias)
        ctx.options = by_tanh, x.shape
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat, bias = ctx.saved_tensors
        by_tanh, shape = ctx.options
        num_rows, width = flat.shape
        programs = min(num_rows, PROGRAMS)
        dx = torch.empty_like(flat)
        partial = torch.empty(programs, width, dtype=torch.float32, device=flat.device)
        tile = BIAS_GELU.of(flat)
        block = min(tile.block, block_of(width))
        launch(
            _backward,
            (programs, triton.cdiv(width, block)),
            rows(grad),
            flat,
            bias,
            dx,
            partial,
            num_rows,
            width,
            triton.cdiv(num_rows, programs),
            TANH=by_tanh,
            BLOCK=block,
            warps=tile.warps,
            stages=tile.stages,
        )
        return dx.view(shape), partial.sum(0).to(bias.dtype), None


def bias_gelu(x: Tensor, bias: Tensor, by_tanh: bool) -> Tensor:
    """The op, as `neox_activations.gelu.bias_gelu`: x [..., width], bias [width] -> as x."""
    return _BiasGelu.apply(x, bias, by_tanh)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    x, bias, _ = sublayer_output(dtype, device, size and evolve(size, width=4 * size.width))
    yield x, bias, False
    yield draw(*x.shape, dtype=dtype, device=device, scale=3.0), bias, True


KERNEL = TritonKernel(bias_gelu, _cases, tiling=BIAS_GELU)
