"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the half-and-half order of GPT-NeoX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import ROTARY
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch


@triton.jit
def _turn(
    x_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    heads,
    seq,
    width,
    half,
    x_batch,
    x_head,
    x_token,
    table_batch,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """The result is [batch, seq, heads, width] in memory. BACK: by the opposite angle."""
    token = tl.program_id(0)
    batch = (token // seq).to(tl.int64)
    position = (token % seq).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    turned = (column < half) & (head < heads)
    table = batch * table_batch + position * 2 * half + column
    cos = tl.load(cos_ptr + table, mask=column < half, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + table + half, mask=column < half, other=0.0).to(tl.float32)
    if BACK:
        sin = -sin
    source = x_ptr + batch * x_batch + position * x_token + head.to(tl.int64) * x_head
    target = y_ptr + (token.to(tl.int64) * heads + head) * width
    first = tl.load(source + column, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(source + column + half, mask=turned, other=0.0).to(tl.float32)
    tl.store(target + column, (first * cos - second * sin).to(y_ptr.dtype.element_ty), mask=turned)
    tl.store(target + column + half, (second * cos + first * sin).to(y_ptr.dtype.element_ty), mask=turned)
    if REST:
        rest = 2 * half + tl.arange(0, REST)[None, :]
        beyond = (rest < width) & (head < heads)
        tl.store(target + rest, tl.load(source + rest, mask=beyond, other=0.0), mask=beyond)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _turned(grad, *ctx.saved_tensors, back=True), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    batch, heads, seq, width = x.shape
    half = cos.shape[-1] // 2
    y = torch.empty(batch, seq, heads, width, dtype=x.dtype, device=x.device)
    half_block = block_of(half)
    rest = block_of(width - 2 * half) if width > 2 * half else 0
    tile = ROTARY.of(x)
    at_once = min(block_of(heads), max(1, tile.block // max(half_block, rest)))
    launch(
        _turn,
        (batch * seq, triton.cdiv(heads, at_once)),
        x,
        cos,
        sin,
        y,
        heads,
        seq,
        width,
        half,
        *x.stride()[:3],
        cos.stride(0) if cos.dim() == 4 and cos.shape[0] > 1 else 0,
        BACK=back,
        HEADS=at_once,
        HALF=half_block,
        REST=rest,
        warps=tile.warps,
        stages=tile.stages,
    )
    return y.transpose(1, 2)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The op, as `neox_positions.rotary.rotary`: x [batch, heads, seq, head_dim], cos, sin [(batch, 1,) seq, turned].

    The tables have no gradient: positions are not trained.
    """
    return _Rotary.apply(x, cos, sin)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    batch, heads, seq, width = (size.batch, size.heads, size.seq, size.head_dim) if size else (2, 3, 5, 24)
    for turned in (width, width // 4):
        packed = draw(batch, seq, heads, 3, width, dtype=dtype, device=device)
        angles = torch.arange(seq, device=device)[:, None] * 10000.0 ** -(
            torch.arange(turned // 2, device=device) / turned
        )
        cos, sin = angles.cos(), angles.sin()
        yield (
            packed.detach().permute(3, 0, 2, 1, 4)[1].requires_grad_(),
            torch.cat((cos, cos), -1).to(dtype),
            torch.cat((-sin, sin), -1).to(dtype),
        )


KERNEL = TritonKernel(rotary, _cases, remembers=False, tiling=ROTARY)
