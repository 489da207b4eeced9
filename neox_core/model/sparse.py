"""Causal attention of blocks of queries to the blocks of keys that a layout names, in plain torch on any device.

Only the blocks that are named are multiplied, some rows of blocks at a time, and the backward pass computes their
probabilities again: time and memory go with the number of named blocks, never with the square of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from neox_core.model.dropout import keep_probabilities

if TYPE_CHECKING:
    from neox_core.model.scores import Request

SCORES = 2**21
"""Scores of one sample that exist at once."""


@frozen(eq=False)
class Rows:
    """Rows of blocks that are computed together, each with as many columns as the longest; `valid` tells the real ones.

    head, row: [rows]; column, valid: [rows, columns]. head counts those of the table, not of the model.
    """

    head: Tensor
    row: Tensor
    column: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> Rows:
        return Rows(*(each.to(device) for each in (self.head, self.row, self.column, self.valid)))


class BlockTable:
    """A layout bool [heads, query blocks, key blocks], lower triangular, as rows to gather; `block` in tokens."""

    def __init__(self, layout: Tensor, block: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout.to(device)
        self.block = block
        self.num_heads, self.num_blocks, _ = layout.shape
        self.rows = tuple(each.to(torch.device(device)) for each in _group(layout, block))

    def first(self, num_blocks: int) -> BlockTable:
        """The table of the first blocks of the sequence."""
        if num_blocks == self.num_blocks:
            return self
        return BlockTable(self.layout[:, :num_blocks, :num_blocks], self.block, self.layout.device)

    def seen(self, first: int, total: int) -> Tensor:
        """Which keys the queries from `first` on attend to: bool [heads, total - first, total]."""
        queries = torch.arange(first, total, device=self.layout.device)
        keys = torch.arange(total, device=self.layout.device)
        blocks = self.layout[:, queries // self.block][:, :, keys // self.block]
        return blocks & (keys <= queries[:, None])


def _group(layout: Tensor, block: int) -> Iterator[Rows]:
    """Rows of about the same length together, at most SCORES scores at a time; rows that see nothing are left out."""
    heads, blocks, _ = layout.shape
    counts = layout.sum(-1).flatten()
    order = counts.argsort(stable=True)
    ordered = counts[order].tolist()
    columns = layout.reshape(heads * blocks, blocks).nonzero()[:, 1]
    starts = counts.cumsum(0) - counts
    begin = next((place for place, count in enumerate(ordered) if count), len(ordered))
    while begin < len(ordered):
        # from the shortest rows on: as many as fit, none more than a quarter longer than the first
        longest, end = ordered[begin] + ordered[begin] // 4, begin + 1
        while end < len(ordered) and ordered[end] <= longest and (end - begin + 1) * ordered[end] * block**2 <= SCORES:
            end += 1
        chosen = order[begin:end]
        place = torch.arange(ordered[end - 1])
        valid = place < counts[chosen][:, None]
        column = columns[(starts[chosen][:, None] + place).clamp(max=columns.numel() - 1)].where(valid, 0)
        yield Rows(chosen // blocks, chosen % blocks, column, valid)
        begin = end


def block_sparse_attention(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """[batch, heads, seq, head_dim] -> the same shape; key and value may have fewer heads, one for a group of queries.

    `request.blocks` says who sees whom. A query whose row names no block gives zeros.
    """
    seq = query.shape[2]
    padding = -seq % request.blocks.block
    if padding:  # keys behind the last query are seen by none
        query, key, value = (F.pad(each, (0, 0, 0, padding)) for each in (query, key, value))
        pair = request.documents, request.positions
        documents, positions = (None if each is None else F.pad(each, (0, padding)) for each in pair)
        request = evolve(request, documents=documents, positions=positions)
    request = evolve(request, blocks=request.blocks.first((seq + padding) // request.blocks.block))
    tensors, structure = tree_flatten(request.prepared)
    attended = _BlockSparse.apply(query, key, value, evolve(request, prepared=None), structure, *tensors)
    return attended[:, :, :seq] if padding else attended  # type: ignore[no-any-return,index]


class _BlockSparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, request: Request, structure: Any, *tensors: Any
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, *tensors)
        ctx.request, ctx.structure = request, structure
        table = request.blocks
        request = evolve(request, prepared=tree_unflatten(tensors, structure))
        flat = [_blocks(each, table.block) for each in (query, key, value)]
        out = torch.zeros_like(flat[0], memory_format=torch.contiguous_format)
        groups = table.num_heads // key.shape[1]
        for rows in table.rows:
            at, columns = _places(rows, table.num_blocks, groups)
            parts = flat[0].index_select(1, at), *(each.index_select(1, columns) for each in flat[1:])
            out.index_copy_(1, at, _attend(*parts, rows, request))
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *tensors = ctx.saved_tensors
        table = ctx.request.blocks
        flat = [_blocks(each, table.block) for each in (query, key, value)]
        grad = _blocks(grads[0], table.block)
        sums = [torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32)) for each in flat]
        extra_sums = [torch.zeros_like(each) if _trained(each) else None for each in tensors]
        groups = table.num_heads // key.shape[1]
        for rows in table.rows:
            at, columns = _places(rows, table.num_blocks, groups)
            places = (at, columns, columns)
            parts = [each.index_select(1, place).requires_grad_() for each, place in zip(flat, places, strict=True)]
            inputs = [each.detach().requires_grad_() if _trained(each) else each for each in tensors]
            wanted = [*parts, *(each for each in inputs if _trained(each))]
            request = evolve(ctx.request, prepared=tree_unflatten(inputs, ctx.structure))
            with torch.enable_grad():
                out = _attend(*parts, rows, request)
            found = torch.autograd.grad(out, wanted, grad.index_select(1, at), allow_unused=True)
            for total, place, one in zip(sums, places, found[:3], strict=True):
                total.index_add_(1, place, one.to(total.dtype))
            used = [total for total in extra_sums if total is not None]
            for total, one in zip(used, found[3:], strict=True):
                if one is not None:
                    total.add_(one)
        back = (total.to(each.dtype).view(each.shape) for total, each in zip(sums, (query, key, value), strict=True))
        return (*back, None, None, *extra_sums)


def _trained(prepared: Any) -> bool:
    """Whether a leaf of what a position prepared may have a gradient."""
    return isinstance(prepared, Tensor) and prepared.is_floating_point()


def _blocks(x: Tensor, block: int) -> Tensor:
    """[batch, heads, seq, dim] -> [batch, heads * blocks, block, dim]."""
    batch, heads, seq, dim = x.shape
    return x.reshape(batch, heads * (seq // block), block, dim)


def _places(rows: Rows, num_blocks: int, groups: int) -> tuple[Tensor, Tensor]:
    """Where a row's queries lie among all blocks of queries, and where its columns lie among those of keys."""
    columns = (rows.head // groups * num_blocks)[:, None] + rows.column
    return rows.head * num_blocks + rows.row, columns.flatten()


def _attend(query: Tensor, key: Tensor, value: Tensor, rows: Rows, request: Request) -> Tensor:
    """query: [batch, rows, block, dim]; key, value: [batch, rows * columns, block, dim] -> like query."""
    batch, count, block, dim = query.shape
    key, value = (each.reshape(batch, count, -1, dim) for each in (key, value))
    within = torch.arange(block, device=query.device)
    query_at = (rows.row[:, None] * block + within)[..., None]  # [rows, block, 1]
    key_at = (rows.column[..., None] * block + within).flatten(1)[:, None]  # [rows, 1, columns * block]
    heads = (rows.head + request.first_head)[:, None, None]
    seen = (key_at <= query_at) & rows.valid.repeat_interleave(block, 1)[:, None]
    if request.documents is not None:
        seen = seen & (request.documents[:, query_at] == request.documents[:, key_at])  # [batch, rows, block, ...]
    scores = query @ key.transpose(-1, -2)  # [batch, rows, block, columns * block]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * request.scale
    bias = request.bias
    if bias is not None:
        pair = query_at, key_at
        first, second = pair if request.positions is None else (request.positions[:, each] for each in pair)
        scores = scores + bias(heads, first, second.minimum(first)).to(scores.dtype)  # it knows of no key ahead
    probs = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    if request.drops:
        kept = keep_probabilities(request.dropout, request.keys, request.site, heads, query_at, key_at)
        probs = torch.where(kept, probs / (1 - request.dropout), 0.0)
    return probs.to(value.dtype) @ value
