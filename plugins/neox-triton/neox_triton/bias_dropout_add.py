"""Bias, dropout and residual after a sublayer.

The masks are those of `neox_gpt.dropout`, to the element: its hash of 32 bits is computed again in the backward
pass, and no mask is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import BIAS_DROPOUT_ADD, PROGRAMS
from neox_triton.examples import Size, sublayer_output
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, like, rows


@triton.jit
def _mix(x):
    """`neox_gpt.dropout.mix` of uint32."""
    x = ((x >> 16) ^ x) * 0x21F0AAAD
    x = ((x >> 15) ^ x) * 0x735A2D97
    return (x >> 15) ^ x


@triton.jit
def _kept(keys_ptr, row, column, seq, salt, first, threshold):
    """Which columns of a row stay. row: batch * seq + position."""
    key = tl.load(keys_ptr + row // seq).to(tl.uint32)
    position = (row % seq + first).to(tl.uint32)
    drawn = _mix(_mix(_mix(key ^ salt.to(tl.uint32)) ^ position) ^ _mix((column + 1).to(tl.uint32)))
    return drawn.to(tl.int64) >= threshold.to(tl.int64)


@triton.jit(do_not_specialize=["salt", "first", "threshold"])
def _forward(
    x_ptr,
    bias_ptr,
    residual_ptr,
    keys_ptr,
    y_ptr,
    width,
    seq,
    salt,
    first,
    threshold,
    divisor,
    BIAS: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = row * width + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if DROP:
        x = tl.where(_kept(keys_ptr, row, column, seq, salt, first, threshold), x / divisor, 0.0)
    residual = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, (residual + x).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["salt", "first", "threshold"])
def _backward(
    grad_ptr,
    keys_ptr,
    dx_ptr,
    dbias_ptr,
    num_rows,
    width,
    per_program,
    seq,
    salt,
    first,
    threshold,
    divisor,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dbias = tl.zeros([BLOCK], tl.float32)
    for step in range(per_program):
        row = tl.minimum(program * per_program + step, num_rows - 1)
        there = (column < width) & (program * per_program + step + column * 0 < num_rows)
        dx = tl.load(grad_ptr + row * width + column, mask=there, other=0.0).to(tl.float32)
        if DROP:
            dx = tl.where(_kept(keys_ptr, row, column, seq, salt, first, threshold), dx / divisor, 0.0)
        tl.store(dx_ptr + row * width + column, dx.to(dx_ptr.dtype.element_ty), mask=there)
        dbias += dx
    tl.store(dbias_ptr + program * width + column, dbias, mask=column < width)


class _BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor,
        p: float,
        keys: Tensor | None,
        site: int,
        first: int,
    ) -> Tensor:
        flat, other, width = rows(x), rows(residual), x.shape[-1]
        keys = keys.contiguous() if keys is not None and p > 0 else None
        salt = 0x5BD1E995 * (site + 1) & 0xFFFFFFFF
        dropout = (x.shape[-2], salt, first, round(p * 2**32), 1 - p if p < 1 else 1.0)
        y = torch.empty_like(other, dtype=like(x, residual))
        tile = BIAS_DROPOUT_ADD.of(flat)
        block = min(tile.block, block_of(width))
        launch(
            _forward,
            (flat.shape[0], triton.cdiv(width, block)),
            flat,
            flat if bias is None else bias.contiguous(),
            other,
            flat if keys is None else keys,
            y,
            width,
            *dropout,
            BIAS=bias is not None,
            DROP=keys is not None,
            BLOCK=block,
            warps=tile.warps,
            stages=tile.stages,
        )
        ctx.save_for_backward(keys)
        ctx.options = tile, dropout, x.dtype, None if bias is None else bias.dtype, residual.dtype
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (keys,) = ctx.saved_tensors
        tile, dropout, dtype, bias_dtype, residual_dtype = ctx.options
        flat = rows(grad)
        num_rows, width = flat.shape
        programs = min(num_rows, PROGRAMS)
        dx = torch.empty_like(flat, dtype=dtype)
        partial = torch.empty(programs, width, dtype=torch.float32, device=flat.device)
        block = min(tile.block, block_of(width))
        launch(
            _backward,
            (programs, triton.cdiv(width, block)),
            flat,
            flat if keys is None else keys,
            dx,
            partial,
            num_rows,
            width,
            triton.cdiv(num_rows, programs),
            *dropout,
            DROP=keys is not None,
            BLOCK=block,
            warps=tile.warps,
            stages=tile.stages,
        )
        dbias = None if bias_dtype is None else partial.sum(0).to(bias_dtype)
        return dx.view(grad.shape), dbias, grad.to(residual_dtype), None, None, None, None


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    p: float = 0.0,
    keys: Tensor | None = None,
    site: int = 0,
    first_position: int = 0,
) -> Tensor:
    """The op, as `neox_gpt.dropout.bias_dropout_add`: x, residual [batch, seq, hidden], bias [hidden]."""
    return _BiasDropoutAdd.apply(x, bias, residual, p, keys, site, first_position)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    x, bias, residual = sublayer_output(dtype, device, size)
    keys = torch.arange(2, x.shape[0] + 2, device=device) * 1_000_003_331 % 2**32
    yield x, bias, residual, 0.1, keys, 4, 1
    yield x, None, residual, 0.5, keys, 10**6, 0
    yield x, bias, residual


KERNEL = TritonKernel(bias_dropout_add, _cases, remembers=False, tiling=BIAS_DROPOUT_ADD)
