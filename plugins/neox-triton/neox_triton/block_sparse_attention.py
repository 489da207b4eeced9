"""Block-sparse attention, the op `block_sparse_attention`: only the blocks that a table names are loaded.

A program of the forward pass has some queries of a head and goes over the blocks that they see, keeping a running
softmax (FlashAttention-2, arXiv:2307.08691). The backward pass computes the probabilities again, once by queries and
once by keys, so that nothing is added by atomics and the same arguments give the same bits. Dropout is the hash of
`neox_core.model.dropout`, computed where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_core.contracts import SparseUse
from neox_core.model.dropout import site_keys
from neox_core.model.scores import Request
from neox_core.model.sparse import BlockTable
from neox_triton.choices import KEY_TILES, QUERY_TILES, SPARSE_WARPS, Tiles
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, interpreted, launch

BLOCKS = (16, 32, 64, 128)


@triton.jit
def _mix(x):
    x = ((x >> 16) ^ x) * 0x21F0AAAD
    x = ((x >> 15) ^ x) * 0x735A2D97
    return (x >> 15) ^ x


@triton.jit
def _kept(salt, head, query, key, threshold):
    """Bool [queries, keys]: what dropout leaves."""
    rows = _mix(_mix(salt ^ head.to(tl.uint32)) ^ query.to(tl.uint32))
    return _mix(rows[:, None] ^ _mix((key + 1).to(tl.uint32))[None, :]) >= threshold.to(tl.uint32)


@triton.jit
def _tile(base, at, seq, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """[tokens, WIDTH], zeros behind the sequence and behind the head's width."""
    dim = tl.arange(0, WIDTH)
    seen = (at < seq)[:, None] & (dim < DIM)[None, :]
    return tl.load(base + at.to(tl.int64)[:, None] * DIM + dim[None, :], mask=seen, other=0.0)


@triton.jit
def _dot(left, right, WIDEN: tl.constexpr):
    if WIDEN:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _scores(query, key, query_at, key_at, documents, seq, scale, DOCUMENTS: tl.constexpr, WIDEN: tl.constexpr):
    """fp32 [queries, keys], -inf where a query does not see a key."""
    scores = _dot(query, tl.trans(key), WIDEN) * scale
    seen = (key_at[None, :] <= query_at[:, None]) & (key_at < seq)[None, :]
    if DOCUMENTS:
        own = tl.load(documents + query_at, mask=query_at < seq, other=-1)
        other = tl.load(documents + key_at, mask=key_at < seq, other=-2)
        seen = seen & (own[:, None] == other[None, :])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _forward(
    query_ptr, key_ptr, value_ptr, out_ptr, lse_ptr, starts_ptr, columns_ptr, documents_ptr, salts_ptr,
    seq, heads, first_head, scale, upscale, threshold,
    GROUPS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
    DOCUMENTS: tl.constexpr, DROPS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = BLOCK // KEYS
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    place = tl.program_id(1).to(tl.int64)
    shared = ((sample * heads + head) // GROUPS).to(tl.int64) * seq * DIM
    query_at = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    row = head * tl.cdiv(seq, BLOCK) + tl.program_id(0) * QUERIES // BLOCK
    query = _tile(query_ptr + place * seq * DIM, query_at, seq, DIM, WIDTH)
    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    first, last = tl.load(starts_ptr + row) * parts, tl.load(starts_ptr + row + 1) * parts
    for i in range(first, last):
        key_at = tl.load(columns_ptr + i // parts) * BLOCK + i % parts * KEYS + tl.arange(0, KEYS)
        key = _tile(key_ptr + shared, key_at, seq, DIM, WIDTH)
        scores = _scores(query, key, query_at, key_at, documents_ptr + sample * seq, seq, scale, DOCUMENTS, WIDEN)
        higher = tl.maximum(highest, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen so far
        probs = tl.exp(scores - finite[:, None])
        fade = tl.exp(highest - finite)
        total = total * fade + tl.sum(probs, 1)
        if DROPS:
            salt = tl.load(salts_ptr + sample).to(tl.uint32)
            probs = tl.where(_kept(salt, head + first_head, query_at, key_at, threshold), probs * upscale, 0.0)
        value = _tile(value_ptr + shared, key_at, seq, DIM, WIDTH)
        out = out * fade[:, None] + _dot(probs.to(value.dtype), value, WIDEN)
        highest = higher
    total = tl.where(total == 0.0, 1.0, total)
    out = out / total[:, None]
    dim = tl.arange(0, WIDTH)
    held = (query_at < seq)[:, None] & (dim < DIM)[None, :]
    at = place * seq * DIM + query_at.to(tl.int64)[:, None] * DIM + dim[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=held)
    lse = tl.where(highest == float("-inf"), 0.0, highest) + tl.log(total)
    tl.store(lse_ptr + place * seq + query_at, lse, mask=query_at < seq)


@triton.jit
def _backward_queries(
    query_ptr, key_ptr, value_ptr, grad_ptr, lse_ptr, delta_ptr, query_grad_ptr,
    starts_ptr, columns_ptr, documents_ptr, salts_ptr,
    seq, heads, first_head, scale, upscale, threshold,
    GROUPS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
    DOCUMENTS: tl.constexpr, DROPS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = BLOCK // KEYS
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    place = tl.program_id(1).to(tl.int64)
    shared = ((sample * heads + head) // GROUPS).to(tl.int64) * seq * DIM
    query_at = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    row = head * tl.cdiv(seq, BLOCK) + tl.program_id(0) * QUERIES // BLOCK
    query = _tile(query_ptr + place * seq * DIM, query_at, seq, DIM, WIDTH)
    grad = _tile(grad_ptr + place * seq * DIM, query_at, seq, DIM, WIDTH)
    lse = tl.load(lse_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
    delta = tl.load(delta_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
    found = tl.zeros([QUERIES, WIDTH], tl.float32)
    first, last = tl.load(starts_ptr + row) * parts, tl.load(starts_ptr + row + 1) * parts
    for i in range(first, last):
        key_at = tl.load(columns_ptr + i // parts) * BLOCK + i % parts * KEYS + tl.arange(0, KEYS)
        key = _tile(key_ptr + shared, key_at, seq, DIM, WIDTH)
        scores = _scores(query, key, query_at, key_at, documents_ptr + sample * seq, seq, scale, DOCUMENTS, WIDEN)
        probs = tl.exp(scores - lse[:, None])
        value = _tile(value_ptr + shared, key_at, seq, DIM, WIDTH)
        back = _dot(grad, tl.trans(value), WIDEN)
        if DROPS:
            salt = tl.load(salts_ptr + sample).to(tl.uint32)
            back = tl.where(_kept(salt, head + first_head, query_at, key_at, threshold), back * upscale, 0.0)
        back = probs * (back - delta[:, None])
        found += _dot(back.to(key.dtype), key, WIDEN)
    dim = tl.arange(0, WIDTH)
    held = (query_at < seq)[:, None] & (dim < DIM)[None, :]
    at = place * seq * DIM + query_at.to(tl.int64)[:, None] * DIM + dim[None, :]
    tl.store(query_grad_ptr + at, (found * scale).to(query_grad_ptr.dtype.element_ty), mask=held)


@triton.jit
def _backward_keys(
    query_ptr, key_ptr, value_ptr, grad_ptr, lse_ptr, delta_ptr, key_grad_ptr, value_grad_ptr,
    starts_ptr, rows_ptr, documents_ptr, salts_ptr,
    seq, heads, first_head, scale, upscale, threshold,
    GROUPS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
    DOCUMENTS: tl.constexpr, DROPS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """For the keys of a head that `GROUPS` heads of queries share: no two programs add to one gradient."""
    parts: tl.constexpr = BLOCK // QUERIES
    shared = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(1) * GROUPS // heads
    key_at = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    key = _tile(key_ptr + shared * seq * DIM, key_at, seq, DIM, WIDTH)
    value = _tile(value_ptr + shared * seq * DIM, key_at, seq, DIM, WIDTH)
    key_grad = tl.zeros([KEYS, WIDTH], tl.float32)
    value_grad = tl.zeros([KEYS, WIDTH], tl.float32)
    for group in range(GROUPS):
        place = shared * GROUPS + group
        head = (place % heads).to(tl.int32)
        column = head * tl.cdiv(seq, BLOCK) + tl.program_id(0) * KEYS // BLOCK
        first, last = tl.load(starts_ptr + column) * parts, tl.load(starts_ptr + column + 1) * parts
        for i in range(first, last):
            query_at = tl.load(rows_ptr + i // parts) * BLOCK + i % parts * QUERIES + tl.arange(0, QUERIES)
            query = _tile(query_ptr + place * seq * DIM, query_at, seq, DIM, WIDTH)
            grad = _tile(grad_ptr + place * seq * DIM, query_at, seq, DIM, WIDTH)
            lse = tl.load(lse_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
            delta = tl.load(delta_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
            scores = _scores(query, key, query_at, key_at, documents_ptr + sample * seq, seq, scale, DOCUMENTS, WIDEN)
            probs = tl.exp(scores - lse[:, None])
            back = _dot(grad, tl.trans(value), WIDEN)
            shown = probs
            if DROPS:
                salt = tl.load(salts_ptr + sample).to(tl.uint32)
                kept = _kept(salt, head + first_head, query_at, key_at, threshold)
                shown = tl.where(kept, probs * upscale, 0.0)
                back = tl.where(kept, back * upscale, 0.0)
            value_grad += _dot(tl.trans(shown.to(grad.dtype)), grad, WIDEN)
            back = probs * (back - delta[:, None])
            key_grad += _dot(tl.trans(back.to(query.dtype)), query, WIDEN)
    dim = tl.arange(0, WIDTH)
    held = (key_at < seq)[:, None] & (dim < DIM)[None, :]
    at = shared * seq * DIM + key_at.to(tl.int64)[:, None] * DIM + dim[None, :]
    tl.store(key_grad_ptr + at, (key_grad * scale).to(key_grad_ptr.dtype.element_ty), mask=held)
    tl.store(value_grad_ptr + at, value_grad.to(value_grad_ptr.dtype.element_ty), mask=held)


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
        query, key, value = (each.contiguous() for each in (query, key, value))
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32)
        started = _Launch(query, key, request)
        started.by_queries(_forward, query, key, value, out, lse)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.request = request
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grad = grad.contiguous()
        delta = (grad.float() * out.float()).sum(-1)
        grads = [torch.empty_like(each) for each in (query, key, value)]
        started = _Launch(query, key, ctx.request)
        read = query, key, value, grad, lse, delta
        started.by_queries(_backward_queries, *read, grads[0])
        started.by_keys(_backward_keys, *read, *grads[1:])
        return (*grads, None)


class _Launch:
    """What the three kernels are told about one request."""

    def __init__(self, query: Tensor, key: Tensor, request: Request) -> None:
        batch, heads, seq, width = query.shape
        self.rows, self.kv_rows, self.seq = batch * heads, batch * key.shape[1], seq
        self.table = _table(request).first(triton.cdiv(seq, _table(request).block))
        nothing = torch.zeros(1, dtype=torch.int32, device=query.device)
        documents, salts, upscale = request.documents, nothing, 1.0
        if request.keys is not None and request.drops:
            salts, upscale = site_keys(request.keys, request.site), 1 / (1 - request.dropout)
        self.more = nothing if documents is None else documents.int().contiguous(), salts.int()
        self.numbers = seq, heads, request.first_head
        self.factors = request.scale, upscale, round(request.dropout * 2**32)
        self.width, self.size = max(block_of(width), 16), query.element_size()
        self.constants = {
            "GROUPS": heads // key.shape[1],
            "DIM": width,
            "DOCUMENTS": documents is not None,
            "DROPS": request.drops,
            "WIDEN": interpreted() and query.dtype == torch.bfloat16,  # it multiplies their bits as whole numbers
        }

    def by_queries(self, kernel: Any, *tensors: Tensor) -> None:
        tile = self._tile(QUERY_TILES)
        products = 2 if kernel is _forward else 3
        self._start(kernel, (triton.cdiv(self.seq, tile[0]), self.rows), tile, tensors, products, by_row=True)

    def by_keys(self, kernel: Any, *tensors: Tensor) -> None:
        tile = self._tile(KEY_TILES)
        self._start(kernel, (triton.cdiv(self.seq, tile[1]), self.kv_rows), tile, tensors, 4, by_row=False)

    def _tile(self, table: dict[int, Tiles]) -> tuple[int, int]:
        """(queries, keys). Documents and dropout take registers too."""
        queries, keys = next(tile for widest, tile in table[self.size] if self.width <= widest)
        if self.constants["DOCUMENTS"] or self.constants["DROPS"]:
            queries = max(queries // 2, 16)
        return min(queries, self.table.block), min(keys, self.table.block)

    def _start(
        self,
        kernel: Any,
        grid: tuple[int, int],
        tile: tuple[int, int],
        tensors: tuple[Tensor, ...],
        products: int,
        *,
        by_row: bool,
    ) -> None:
        """products: of matrices, for each pair of a query and a key that meet in a block."""

        def flops() -> int:
            blocks = sum(each.row.numel() * each.tall * each.column.shape[1] for each in self.table.rows)
            pairs = (self.rows // self.numbers[1]) * blocks * self.table.block**2
            return int(2 * products * pairs * tensors[0].shape[-1])

        if tensors[0].is_meta:  # to be compiled, not started
            lists = (torch.empty(1, dtype=torch.int32, device="meta"),) * 2
        else:
            lists = self.table.by_row if by_row else self.table.by_column
        cut: dict[str, Any] = {"WIDTH": self.width, "BLOCK": self.table.block, "QUERIES": tile[0], "KEYS": tile[1]}
        arguments = *tensors, *lists, *self.more, *self.numbers, *self.factors
        launch(kernel, grid, *arguments, **cut, **self.constants, warps=SPARSE_WARPS, flops=flops)


def _table(request: Request) -> BlockTable:
    if request.blocks is None:
        raise ValueError("block-sparse attention needs a table")
    return request.blocks


def _why_not_for(use: SparseUse) -> tuple[str, ...]:
    reasons = tuple(f"it has no blocks of {block} tokens" for block in use.blocks if block not in BLOCKS)
    return (*reasons, "it adds no bias to the scores") if use.bias else reasons


def block_sparse_attention(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """As `neox_core.model.blocked.blocked_attention`. Raises ValueError for what `why_not_for` refuses."""
    if reasons := _why_not_for(SparseUse((_table(request).block,), bias=request.bias is not None)):
        raise ValueError(f"not by the Triton kernel of block_sparse_attention: {', '.join(reasons)}")
    query, key = query.to(value.dtype), key.to(value.dtype)
    return _Sparse.apply(query, key, value, request)


class _SparseKernel(TritonKernel):
    """`contracts.SparseKernel`."""

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        return _why_not_for(use)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    """A window of 512 tokens. Odd lengths and grouped heads, or long sequences; documents and dropout in some."""
    small = ((2, 4, 2, 37, 40, 16, 0.2), (1, 2, 1, 70, 128, 64, 0.0), (1, 1, 1, 33, 256, 16, 0.2))
    for batch, heads, kv_heads, seq, width, block, dropout in _long(size) if size else small:
        shapes = ((batch, each, seq, width) for each in (heads, kv_heads, kv_heads))
        place = torch.arange(triton.cdiv(seq, block))
        back = place[:, None] - place
        table = BlockTable(((back >= 0) & (back <= 512 // block)).expand(heads, -1, -1), block, device)
        request = Request(width**-0.5, dropout=dropout, keys=torch.arange(7, 7 + batch, device=device), blocks=table)
        if not size:
            request.documents = (torch.arange(seq, device=device) > seq // 3).long().expand(batch, -1)
        query, key, value = (draw(*shape, dtype=dtype, device=device) for shape in shapes)
        yield query, key.detach().flip(2).requires_grad_(), value, request  # else a query would be its own key


def _long(size: Size) -> Iterator[tuple[int, int, int, int, int, int, float]]:
    """(batch, heads, kv heads, seq, width, block, dropout)."""
    yield 1, size.heads, size.heads, 4 * size.seq, size.head_dim, 64, 0.0
    yield 1, size.heads, size.heads // (1 if size.heads % 4 else 4), 4 * size.seq, size.head_dim, 16, 0.1


KERNEL = _SparseKernel(block_sparse_attention, _cases, max_width=256)
