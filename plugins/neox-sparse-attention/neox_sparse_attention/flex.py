"""The op `block_sparse_attention` by torch's FlexAttention (arXiv:2412.05496), compiled for the mask of a layout.

It works in blocks of 128 tokens: smaller ones of a layout are told apart within them. On a GPU it trains; on a CPU it
has no backward pass, and no dropout anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from neox_core.contracts import SparseUse
from neox_core.model.scores import Request
from neox_core.model.sparse import BlockTable

TILE = 128
"""Tokens on a side of what is skipped or computed."""
_MASKS = 256

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(sample, head, query, key) -> whether it is seen."""


class Flex:
    """`contracts.Kernel`."""

    tested: frozenset[str] = frozenset()

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        reasons = () if device.type == "cuda" else (f"FlexAttention has no backward pass on a {device.type}",)
        return reasons if dtype.itemsize <= 4 else (*reasons, f"not for {str(dtype).removeprefix('torch.')}")

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        odd = (block for block in use.blocks if TILE % block and block % TILE)
        reasons = tuple(f"its tiles of {TILE} tokens do not fit blocks of {block}" for block in odd)
        return (*reasons, "it drops no attention probabilities") if use.dropout else reasons

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
        """As `neox_core.model.blocked.blocked_attention`. Raises ValueError for what `why_not_for` refuses."""
        table = request.blocks
        if table is None:
            raise ValueError("block-sparse attention needs a table")
        if reasons := self.why_not_for(SparseUse((table.block,), dropout=request.drops)):
            raise ValueError(f"not by FlexAttention: {', '.join(reasons)}")
        mask = block_mask(table, query.shape[2]) if request.documents is None else _of_documents(table, request)
        found: Tensor = _compiled()(
            query.to(value.dtype),
            key.to(value.dtype),
            value,
            score_mod=_biased(request),
            block_mask=mask,
            scale=request.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterator[tuple[Any, ...]]:
        """Grouped heads and an odd length; or a window of 512 tokens in a long sequence."""
        for heads, kv_heads, seq, width, block in ((16, 16, 8192, 128, 64) if large else (4, 2, 300, 32, 16),):
            generator = torch.Generator().manual_seed(seq)
            sizes = ((1, each, seq, width) for each in (heads, kv_heads, kv_heads))
            drawn = (torch.randn(size, generator=generator).to(device, dtype).requires_grad_() for size in sizes)
            place = torch.arange(-(-seq // block))
            back = place[:, None] - place
            seen = ((back >= 0) & (back <= 512 // block)).expand(heads, -1, -1)
            yield *drawn, Request(width**-0.5, blocks=BlockTable(seen, block, device))


@lru_cache(maxsize=_MASKS)
def block_mask(table: BlockTable, seq: int) -> BlockMask:
    """The table's mask for `seq` tokens; full tiles are those without a token that is not seen."""
    layout, block = table.layout, table.block

    def seen(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return layout[head, query // block, key // block] & (key <= query)

    return _mask(table, seq, seen, full=True)


def _of_documents(table: BlockTable, request: Request) -> BlockMask:
    layout, block, documents = table.layout, table.block, request.documents
    if documents is None:
        raise ValueError("no documents")

    def seen(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        here = layout[head, query // block, key // block] & (key <= query)
        return here & (documents[sample, query] == documents[sample, key])

    return _mask(table, documents.shape[1], seen, full=False)


def _mask(table: BlockTable, seq: int, rule: Rule, *, full: bool) -> BlockMask:
    size = max(TILE, table.block)
    per, tiles = size // table.block, -(-seq // size)
    padding = tiles * per - table.num_blocks
    padded = (
        F.pad(table.layout, (0, padding, 0, padding)) if padding > 0 else table.layout[:, : tiles * per, : tiles * per]
    )
    parts = padded.view(table.num_heads, tiles, per, tiles, per)
    some, whole = parts.any(4).any(2), parts.all(4).all(2).tril(-1)
    if not full:
        whole = torch.zeros_like(whole)
    lists = [each for tile in (some & ~whole, whole) for each in _lists(tile)]
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=size, mask_mod=rule, seq_lengths=(seq, seq))


def _lists(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """[heads, queries, keys] -> how many of each row, [1, heads, queries], and which, these first."""
    order = tiles.int().sort(dim=-1, descending=True, stable=True).indices
    return tiles.sum(-1, dtype=torch.int32)[None], order.int()[None]


def _biased(request: Request) -> Callable[..., Tensor] | None:
    bias, positions, first_head = request.bias, request.positions, request.first_head
    if bias is None:
        return None

    def biased(score: Tensor, sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        if positions is not None:
            row, column = positions[sample, row], positions[sample, column]
        return score + bias(head + first_head, row, column).to(score.dtype)

    return biased


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)  # type: ignore[no-any-return]


KERNEL = Flex()
