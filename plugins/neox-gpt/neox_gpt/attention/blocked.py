"""Block-sparse attention in plain torch, on any device, forward and backward.

Only the blocks that a table names are multiplied, and few others beside them where rows are worked on in groups; the
backward pass computes their probabilities again: time and memory go with the number of named blocks, never with the
square of the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from neox_gpt.dropout import keep_probabilities

if TYPE_CHECKING:
    from neox_gpt.attention.scores import Request
    from neox_gpt.attention.sparse import BlockTable, Rows

SCORES = {"cpu": 2**18}
GPU_SCORES = 2**26
"""Scores that exist at once: on a CPU what its cache holds, on a GPU what keeps it busy."""


@torch._disable_dynamo  # noqa: SLF001  a compiler would unroll the loops over the blocks of a table
def blocked_attention(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """[batch, heads, seq, head_dim] -> the same shape; key and value may have fewer heads, one for a group of queries.

    `request.blocks` says who sees whom. A query that sees no key gives zeros.
    """
    table, seq = request.blocks, query.shape[2]
    if table is None:
        raise ValueError("blocked attention needs a table")
    padding = -seq % table.block
    if padding:
        query, key, value = (F.pad(each, (0, 0, 0, padding)) for each in (query, key, value))
        documents, positions = request.documents, request.positions
        if not table.causal and documents is None:
            documents = torch.zeros(len(query), seq, dtype=torch.int64, device=query.device)
        if documents is not None:  # no query that counts sees what is behind the last one
            documents = F.pad(documents, (0, padding), value=-1)
        positions = None if positions is None else F.pad(positions, (0, padding))
        request = evolve(request, documents=documents, positions=positions)
    request = evolve(request, blocks=table.first((seq + padding) // table.block))
    query, key = query.to(value.dtype), key.to(value.dtype)
    tensors, structure = tree_flatten(request.prepared)
    attended: Tensor = _Blocked.apply(query, key, value, evolve(request, prepared=None), structure, *tensors)
    return attended[:, :, :seq] if padding else attended


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, request: Request, structure: Any, *tensors: Any
    ) -> Tensor:
        request = evolve(request, prepared=tree_unflatten(tensors, structure))
        queries, keys, values = (_blocks(each, request) for each in (query, key, value))
        out = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        with torch.autocast(query.device.type, enabled=False):
            for part in _parts(request, key.shape[1], query):
                probs = part.probabilities(part.of_queries(queries), part.of_keys(keys), request)
                probs = _thin(probs, part.kept(request), request)
                part.add(out, part.at, probs.to(value.dtype) @ part.of_keys(values))
        ctx.save_for_backward(query, key, value, out, *tensors)
        ctx.request, ctx.structure = evolve(request, prepared=None), structure
        return out.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *tensors = ctx.saved_tensors
        inputs = [each.detach().requires_grad_() if _trained(each) else each for each in tensors]
        request = evolve(ctx.request, prepared=tree_unflatten(inputs, ctx.structure))
        trained = [each for each in inputs if _trained(each)]
        trained_sums = [torch.zeros_like(each) for each in trained]
        queries, keys, values, grads = (_blocks(each, request) for each in (query, key, value, grad))
        delta = (grads * out).sum(-1, keepdim=True, dtype=_wide(out.dtype))  # what a row's probabilities share
        sums = [torch.zeros_like(each, dtype=_wide(each.dtype)) for each in (queries, keys, values)]
        with torch.autocast(query.device.type, enabled=False):
            for part in _parts(request, key.shape[1], query):
                own, seen, shown, above = (
                    part.of_queries(queries),
                    part.of_keys(keys),
                    part.of_keys(values),
                    part.of_queries(grads),
                )
                bias = part.bias(request, trained=bool(trained))
                probs = part.probabilities(own, seen, request, bias)
                back = (above @ shown.mT).to(probs.dtype)
                kept = part.kept(request)
                dropped, back = _thin(probs, kept, request), _thin(back, kept, request)
                part.add(sums[2], part.columns, dropped.to(value.dtype).mT @ above)
                back.sub_(part.of_queries(delta)).mul_(probs)  # now of the scores
                if bias is not None and bias.requires_grad:
                    found = torch.autograd.grad(bias, trained, part.apart(back), allow_unused=True)
                    for total, one in zip(trained_sums, found, strict=True):
                        if one is not None:
                            total.add_(one)
                if request.softcap is not None:
                    capped = (_product(own, seen.mT, request.scale).to(back.dtype) / request.softcap).tanh_()
                    back.mul_(1 - capped.square_())
                scores = back.to(query.dtype)
                part.add(sums[0], part.at, _product(scores, seen, request.scale))
                part.add(sums[1], part.columns, _product(scores.mT, own, request.scale))
        back_sums = (
            total.to(each.dtype).view(each.shape) for total, each in zip(sums, (query, key, value), strict=True)
        )
        each_sum = iter(trained_sums)
        return (*back_sums, None, None, *(next(each_sum) if _trained(each) else None for each in tensors))


@frozen(eq=False)
class _Part:
    """Groups of rows that are worked on at once, of every sample: a product for each.

    at: [groups * tall], columns: [groups * columns], blocks of all heads. rows in shapes below: groups; high: the
    queries of one, `tall * block`.
    """

    rows: Rows
    at: Tensor
    columns: Tensor
    batch: int
    block: int

    @property
    def high(self) -> int:
        return self.rows.tall * self.block

    def of_queries(self, x: Tensor) -> Tensor:
        """[batch, heads * blocks, block, dim] -> [batch * rows, high, dim]."""
        return self._gathered(x, self.at)

    def of_keys(self, x: Tensor) -> Tensor:
        """[batch, kv heads * blocks, block, dim] -> [batch * rows, columns * block, dim]."""
        return self._gathered(x, self.columns)

    def _gathered(self, x: Tensor, at: Tensor) -> Tensor:
        return x.index_select(1, at).view(self.batch * self.rows.row.numel(), -1, x.shape[-1])

    def apart(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.batch, -1))

    def add(self, total: Tensor, at: Tensor, x: Tensor) -> None:
        """Add x, of any number of leading dimensions, to the blocks `at` of [batch, blocks, block, dim]."""
        total.index_add_(1, at, x.reshape(self.batch, at.numel(), *total.shape[2:]).to(total.dtype))

    def probabilities(self, query: Tensor, key: Tensor, request: Request, bias: Tensor | None = None) -> Tensor:
        """fp32 or wider [batch * rows, high, columns * block]; zeros where nothing is seen."""
        scores = _product(query, key.mT, request.scale)
        scores = scores.to(_wide(scores.dtype))
        if request.softcap is not None:
            scores = request.softcap * (scores / request.softcap).tanh_()
        if bias is None:
            bias = self.bias(request, trained=False)
        if bias is not None:
            scores = (self.apart(scores) + bias.detach().to(scores.dtype)).flatten(0, 1)
        if self.rows.diagonal:
            ahead = torch.ones(self.high, self.high, dtype=torch.bool, device=scores.device).triu(1)
            scores[..., -self.high :].masked_fill_(ahead, -math.inf)
        if some := self.rows.hidden.shape[2]:
            blocks = scores[..., : some * self.block].unflatten(-1, (some, self.block)).unflatten(1, (-1, self.block))
            self.apart(blocks).masked_fill_(self.rows.hidden[:, :, None, :, None], -math.inf)
        if request.window is not None:
            _, query_at, key_at = self.places(request)
            self.apart(scores).masked_fill_(query_at - key_at > request.window, -math.inf)
        if request.documents is None:
            return scores.softmax(-1)
        _, query_at, key_at = self.places(request)
        other = (request.documents[:, query_at] != request.documents[:, key_at]).flatten(0, 1)
        probs = scores.masked_fill_(other, -math.inf).softmax(-1)
        return probs if self.rows.diagonal else probs.nan_to_num_(0.0)  # no key of its document is there

    def places(self, request: Request) -> tuple[Tensor, Tensor, Tensor]:
        """Head of the model, position of the query, of the key: they broadcast to [rows, high, columns * block]."""
        within = torch.arange(self.block, device=self.at.device)
        query_at = (self.rows.row[:, None] * self.block + torch.arange(self.high, device=self.at.device))[..., None]
        key_at = (self.rows.column[..., None] * self.block + within).flatten(1)[:, None]
        return (self.rows.head + request.first_head)[:, None, None], query_at, key_at

    def bias(self, request: Request, *, trained: bool) -> Tensor | None:
        """What a position adds to the scores: [batch, rows, high, columns * block]."""
        with torch.set_grad_enabled(trained):
            of = request.bias
            if of is None:
                return None
            head, query_at, key_at = self.places(request)
            if request.positions is not None:
                query_at, key_at = (request.positions[:, each] for each in (query_at, key_at))
            if request.blocks is None or request.blocks.causal:
                key_at = key_at.minimum(query_at)  # a bias may know of no key ahead
            found = of(head, query_at, key_at)
            size = self.batch, self.rows.row.numel(), self.high, self.rows.column.shape[1] * self.block
            return found.expand(size)

    def kept(self, request: Request) -> Tensor | None:
        """What dropout leaves: bool [batch * rows, high, columns * block]; None: all."""
        if request.keys is None or not request.drops:
            return None
        return keep_probabilities(request.dropout, request.keys, request.site, *self.places(request)).flatten(0, 1)


def _thin(x: Tensor, kept: Tensor | None, request: Request) -> Tensor:
    return x if kept is None else torch.where(kept, x / (1 - request.dropout), 0.0)


def _parts(request: Request, kv_heads: int, query: Tensor) -> Iterator[_Part]:
    table: BlockTable = request.blocks  # type: ignore[assignment]  # set where a layer has a layout
    groups, batch = table.num_heads // kv_heads, query.shape[0]
    at_once = SCORES.get(query.device.type, GPU_SCORES)
    for alike in table.rows:
        most = max(1, at_once // (batch * alike.tall * alike.column.shape[1] * table.block**2))
        below = torch.arange(alike.tall, device=alike.row.device)
        for rows in alike.split(most):
            at = (rows.head * table.num_blocks + rows.row)[:, None] + below
            columns = (rows.head // groups * table.num_blocks)[:, None] + rows.column
            yield _Part(rows, at.flatten(), columns.flatten(), batch, table.block)


def _blocks(x: Tensor, request: Request) -> Tensor:
    """[batch, heads, seq, dim] -> [batch, heads * blocks, block, dim]."""
    batch, heads, seq, dim = x.shape
    block = request.blocks.block  # type: ignore[union-attr]  # as in _parts
    return x.contiguous().view(batch, heads * (seq // block), block, dim)


def _product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    empty = left.new_empty(()).expand(left.shape[0], left.shape[1], right.shape[2])
    return torch.baddbmm(empty, left, right, beta=0, alpha=scale)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _trained(prepared: Any) -> bool:
    """Whether a leaf of what a position prepared may have a gradient."""
    return isinstance(prepared, Tensor) and prepared.is_floating_point()
