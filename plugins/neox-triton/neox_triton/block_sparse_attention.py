"""Block-sparse attention, the op `block_sparse_attention`: only the blocks that a table names are loaded.

The kernels are in `sparse_kernels`, and how a table is dealt to their programs in `sparse_lists`. Queries, keys and
values are read where they lie, such as in one projection of all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
from neox_gpt.api import BlockTable, Request, SparseUse, site_keys
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import (
    FORWARD_TILES,
    FORWARD_WARPS,
    KEY_REGISTERS,
    KEY_STAGES,
    KEY_TILES,
    KEYS_WIDTH,
    QUERY_TILES,
    SPARSE_WARPS,
    Tiles,
)
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, interpreted, launch
from neox_triton.sparse_kernels import add_up, backward_keys, backward_queries, forward
from neox_triton.sparse_lists import Lists, Plan, Work, entries_of, plan_of, tall_of

BLOCKS = (16, 32, 64, 128)


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
        query, key, value = map(_readable, (query, key, value))
        batch, heads, seq, width = query.shape
        out = query.new_empty(batch, seq, heads, width).transpose(1, 2)  # as what follows reads it
        lse = query.new_empty(batch, heads, seq, dtype=torch.float32)
        _Launch(query, key, request).forward(query, key, value, out, lse)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.request = request
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grads = _Launch(query, key, ctx.request).backward(query, key, value, out, lse, _readable(grad))
        return (*grads, None)


class _Launch:
    """What the kernels are told about one request."""

    def __init__(self, query: Tensor, key: Tensor, request: Request) -> None:
        self.batch, self.heads, self.seq, width = query.shape
        groups, table = self.heads // key.shape[1], _table(request)
        table = table.first(triton.cdiv(self.seq, table.block))
        self.table = table
        self.plan = _unknown_plan() if query.is_meta else plan_of(table, groups)
        nothing = torch.zeros(1, dtype=torch.int32, device=query.device)
        documents, salts, upscale = request.documents, nothing, 1.0
        if request.keys is not None and request.drops:
            salts = site_keys(request.keys, request.site)
            upscale = 1 / (1 - request.dropout) if request.dropout < 1 else 1.0
        self.more = nothing if documents is None else documents.int().contiguous(), salts.int()
        self.numbers = self.seq, self.heads, request.first_head
        self.factors = request.scale, upscale, max(round(request.dropout * 2**32) - 1, 0)
        self.size, self.block, self.tall = query.element_size(), table.block, tall_of(table.block)
        self.shape = {"DIM": width, "WIDTH": max(block_of(width), 16), "TALL": self.tall}
        self.constants = {
            "GROUPS": groups,
            "BLOCK": table.block,
            "DOCUMENTS": documents is not None,
            "DROPS": request.drops,
            "WIDEN": interpreted() and query.dtype == torch.bfloat16,  # it multiplies their bits as whole numbers
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor) -> None:
        lists = *self.plan.rows.tensors, *self.more
        strided = {"query": query, "key": key, "value": value, "out": out}
        self._by_queries(forward, (query, key, value, out, lse, *lists), strided)

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        delta = torch.empty_like(lse)
        query_grad, key_grad, value_grad = [torch.empty_like(each) for each in (query, key, value)]
        lists = *self.plan.rows.tensors, *self.more
        strided = {"query": query, "key": key, "value": value, "out": out, "grad": grad, "query_grad": query_grad}
        read = query, key, value, out, grad, lse
        self._by_queries(backward_queries, (*read, delta, query_grad, *lists), strided)

        work, tile = self.plan.work, self._tile(KEY_TILES)
        sums = [lse.new_empty(self.batch * work.num_slots, self.tall, query.shape[-1]) for _ in range(2)]
        works = work.columns, work.segments, work.slots
        tensors = query, key, value, grad, lse, delta, key_grad, value_grad, *sums, *works
        del strided["out"], strided["query_grad"]
        strides, tokens = _strides(strided | {"key_grad": key_grad, "value_grad": value_grad})
        numbers = len(work.columns), work.num_slots, *self.numbers, *self.factors
        launch(
            backward_keys,
            (self.tall // tile[1] * len(work.columns) * self.batch,),
            *(*tensors, *self.plan.columns.tensors, *self.more, *strides, *numbers),
            **(self.shape | self.constants | tokens | {"WIDTH": max(self.shape["WIDTH"], KEYS_WIDTH)}),
            QUERIES=tile[0],
            KEYS=tile[1],
            LONGEST=entries_of(self.block),
            warps=SPARSE_WARPS,
            stages=KEY_STAGES[self.size],
            registers=KEY_REGISTERS[self.size],
            flops=lambda: self._flops(4),
        )
        if work.num_slots:
            for each, found in zip(sums, (key_grad, value_grad), strict=True):
                self._add_up(each, found)
        return query_grad, key_grad, value_grad

    def _by_queries(self, kernel: Any, tensors: tuple[Tensor, ...], strided: Mapping[str, Tensor]) -> None:
        tile = self._tile(FORWARD_TILES if kernel is forward else QUERY_TILES)
        strides, tokens = _strides(strided)
        launch(
            kernel,
            (triton.cdiv(self.seq, tile[0]) * self.batch * self.heads,),
            *(*tensors, *strides, *self.numbers, *self.factors),
            **(self.shape | self.constants | tokens),
            QUERIES=tile[0],
            KEYS=tile[1],
            warps=FORWARD_WARPS[self.size] if kernel is forward else SPARSE_WARPS,
            flops=lambda: self._flops(3 if kernel is backward_queries else 2),
        )

    def _flops(self, products: int) -> int:
        """Of so many products of each pair of a query and a key that meet in a block."""
        blocks = sum(each.row.numel() * each.tall * each.column.shape[1] for each in self.table.rows)
        return int(2 * products * self.batch * blocks * self.block**2 * self.shape["DIM"])

    def _add_up(self, sums: Tensor, grad: Tensor) -> None:
        """The sums of keys that several programs have a share in."""
        work, tokens = self.plan.work, 16
        numbers = len(work.shared), work.num_slots, self.seq
        strides, token = _strides({"grad": grad})
        launch(
            add_up,
            (self.tall // tokens * len(work.shared) * self.batch,),
            *(sums, grad, work.shared, work.first_slots, work.counts, *strides, *numbers),
            **(self.shape | token),
            TOKENS=tokens,
            warps=SPARSE_WARPS,
            registers=KEY_REGISTERS[self.size],
            passes={1: 0},  # a few of its rows
        )

    def _tile(self, table: dict[int, Tiles]) -> tuple[int, int]:
        """(queries, keys): all rows of a group by a part of one block. Documents and dropout take registers too."""
        queries, keys = next(tile for widest, tile in table[self.size] if self.shape["WIDTH"] <= widest)
        narrow = table is not KEY_TILES and self.block < keys
        if self.constants["DOCUMENTS"] or self.constants["DROPS"]:
            queries = max(queries // 2, 32 if narrow else 16)
        if table is not KEY_TILES:
            return queries, min(keys, self.block)
        return min(queries, self.block), keys


def _readable(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(tensors: Mapping[str, Tensor]) -> tuple[list[int], dict[str, int]]:
    """(of samples and heads, of tokens by the names of constants: the same in a sequence of any length)."""
    dynamic = [stride for each in tensors.values() for stride in each.stride()[:2]]
    return dynamic, {f"{name.upper()}_TOKEN": each.stride(2) for name, each in tensors.items()}


def _unknown_plan() -> Plan:
    """For kernels that are compiled and not started."""
    some = torch.empty(2, dtype=torch.int32, device="meta")
    lists = Lists(some, some, some)
    return Plan(lists, lists, Work(some, some, some, some, some, some, num_slots=2))


def _table(request: Request) -> BlockTable:
    if request.blocks is None:
        raise ValueError("block-sparse attention needs a table")
    return request.blocks


def _why_not_for(use: SparseUse) -> tuple[str, ...]:
    reasons = tuple(f"it has no blocks of {block} tokens" for block in use.blocks if block not in BLOCKS)
    return (*reasons, "it adds no bias to the scores") if use.bias else reasons


def block_sparse_attention(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """As `neox_gpt.attention.blocked.blocked_attention`. Raises ValueError for what `why_not_for` refuses."""
    reasons = _why_not_for(SparseUse((_table(request).block,), bias=request.bias is not None))
    if request.softcap is not None:
        reasons += ("it keeps no scores within a softcap",)
    if reasons:
        raise ValueError(f"not by the Triton kernel of block_sparse_attention: {', '.join(reasons)}")
    query, key = query.to(value.dtype), key.to(value.dtype)
    return _Sparse.apply(query, key, value, request)


class _SparseKernel(TritonKernel):
    """`contracts.SparseKernel`."""

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        return _why_not_for(use)


SMALL = (
    (1, 2, 1, 20, 16, 16, 0.2),
    (2, 4, 2, 37, 40, 16, 0.2),
    (1, 2, 1, 70, 128, 64, 0.0),
    (1, 1, 1, 33, 256, 16, 0.2),
)
"""As `_long`; a run tries the first one."""


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    """A window of 512 tokens, and one block that all see. Odd lengths and grouped heads, or long sequences; documents
    and dropout in some.
    """
    for batch, heads, kv_heads, seq, width, block, dropout in _long(size) if size else SMALL:
        place = torch.arange(triton.cdiv(seq, block))
        back = place[:, None] - place
        layout = (back >= 0) & ((back <= 512 // block) | (place == 0))
        table = BlockTable(layout.expand(heads, -1, -1), block, device)
        request = Request(width**-0.5, dropout=dropout, keys=torch.arange(7, 7 + batch, device=device), blocks=table)
        if not size:
            request.documents = (torch.arange(seq, device=device) > seq // 3).long().expand(batch, -1)
        shapes = ((batch, seq, each, width) for each in (heads, kv_heads, kv_heads))
        query, key, value = (draw(*shape, dtype=dtype, device=device).detach().transpose(1, 2) for shape in shapes)
        key = key.flip(2)  # else a query would be its own key
        yield query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), request


def _long(size: Size) -> Iterator[tuple[int, int, int, int, int, int, float]]:
    """(batch, heads, kv heads, seq, width, block, dropout)."""
    yield 1, size.heads, size.heads, 4 * size.seq, size.head_dim, 64, 0.0
    yield 1, size.heads, size.heads // (1 if size.heads % 4 else 4), 4 * size.seq, size.head_dim, 16, 0.1


KERNEL = _SparseKernel(block_sparse_attention, _cases, max_width=256)
