"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the half-and-half order of GPT-NeoX.

Queries and keys are turned by one launch: a program has some heads of one token of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import ROTARY_PAIR
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch


@triton.jit
def _heads(source, target, there, cos, sin, width, half, HALF: tl.constexpr, REST: tl.constexpr):
    """source, target: where heads begin, [heads, 1]; there: which of them are."""
    column = tl.arange(0, HALF)[None, :]
    turned = (column < half) & there
    first = tl.load(source + column, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(source + column + half, mask=turned, other=0.0).to(tl.float32)
    tl.store(target + column, (first * cos - second * sin).to(target.dtype.element_ty), mask=turned)
    tl.store(target + column + half, (second * cos + first * sin).to(target.dtype.element_ty), mask=turned)
    if REST:
        rest = 2 * half + tl.arange(0, REST)[None, :]
        beyond = (rest < width) & there
        tl.store(target + rest, tl.load(source + rest, mask=beyond, other=0.0), mask=beyond)


@triton.jit
def _turn(
    query_ptr,
    key_ptr,
    cos_ptr,
    sin_ptr,
    query_to_ptr,
    key_to_ptr,
    heads,
    key_heads,
    seq,
    width,
    half,
    query_batch,
    query_head,
    query_token,
    key_batch,
    key_head,
    key_token,
    table_batch,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """The results are [batch, seq, heads, width] in memory. BACK: by the opposite angle."""
    token = tl.program_id(0)
    batch = (token // seq).to(tl.int64)
    position = (token % seq).to(tl.int64)
    column = tl.arange(0, HALF)[None, :]
    table = batch * table_batch + position * 2 * half + column
    cos = tl.load(cos_ptr + table, mask=column < half, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + table + half, mask=column < half, other=0.0).to(tl.float32)
    if BACK:
        sin = -sin
    part = tl.program_id(1)
    of_queries = tl.cdiv(heads, HEADS)
    if part < of_queries:
        head = part * HEADS + tl.arange(0, HEADS)[:, None]
        source = query_ptr + batch * query_batch + position * query_token + head.to(tl.int64) * query_head
        target = query_to_ptr + (token.to(tl.int64) * heads + head) * width
        _heads(source, target, head < heads, cos, sin, width, half, HALF, REST)
    else:
        head = (part - of_queries) * HEADS + tl.arange(0, HEADS)[:, None]
        source = key_ptr + batch * key_batch + position * key_token + head.to(tl.int64) * key_head
        target = key_to_ptr + (token.to(tl.int64) * key_heads + head) * width
        _heads(source, target, head < key_heads, cos, sin, width, half, HALF, REST)


class _RotaryPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _turned(query, key, cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_query: Tensor, grad_key: Tensor) -> tuple[Tensor | None, ...]:
        return (*_turned(grad_query, grad_key, *ctx.saved_tensors, back=True), None, None)


def _turned(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> tuple[Tensor, Tensor]:
    query, key = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key))
    cos, sin = cos.contiguous(), sin.contiguous()
    batch, heads, seq, width = query.shape
    key_heads, half = key.shape[1], cos.shape[-1] // 2
    results = [torch.empty(batch, seq, each.shape[1], width, dtype=each.dtype, device=each.device)
               for each in (query, key)]  # fmt: skip
    half_block = block_of(half)
    rest = block_of(width - 2 * half) if width > 2 * half else 0
    tile = ROTARY_PAIR.of(query)
    at_once = min(block_of(max(heads, key_heads)), max(1, tile.block // max(half_block, rest)))
    launch(
        _turn,
        (batch * seq, triton.cdiv(heads, at_once) + triton.cdiv(key_heads, at_once)),
        query,
        key,
        cos,
        sin,
        *results,
        heads,
        key_heads,
        seq,
        width,
        half,
        *query.stride()[:3],
        *key.stride()[:3],
        cos.stride(0) if cos.dim() == 4 and cos.shape[0] > 1 else 0,
        BACK=back,
        HEADS=at_once,
        HALF=half_block,
        REST=rest,
        warps=tile.warps,
        stages=tile.stages,
    )
    return results[0].transpose(1, 2), results[1].transpose(1, 2)


def rotary_pair(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The op, as `neox_positions.rotary.rotary_pair`: query, key [batch, heads, seq, head_dim], each its own heads.

    cos, sin: [(batch, 1,) seq, turned]. They have no gradient: positions are not trained.
    """
    turned: tuple[Tensor, Tensor] = _RotaryPair.apply(query, key, cos, sin)
    return turned


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    """All of a head is turned, of a packed projection; a quarter is, and keys have fewer heads."""
    batch, heads, seq, width = (size.batch, size.heads, size.seq, size.head_dim) if size else (2, 3, 5, 24)
    for turned, key_heads in ((width, heads), (width // 4, 1 if heads % 4 else heads // 4)):
        packed = draw(batch, seq, heads, 3, width, dtype=dtype, device=device).detach().permute(3, 0, 2, 1, 4)
        angles = torch.arange(seq, device=device)[:, None] * 10000.0 ** -(
            torch.arange(turned // 2, device=device) / turned
        )
        cos, sin = angles.cos(), angles.sin()
        yield (
            packed[0].requires_grad_(),
            packed[1, :, :key_heads].requires_grad_(),
            torch.cat((cos, cos), -1).to(dtype),
            torch.cat((-sin, sin), -1).to(dtype),
        )


KERNEL = TritonKernel(rotary_pair, _cases, remembers=False, tiling=ROTARY_PAIR)
