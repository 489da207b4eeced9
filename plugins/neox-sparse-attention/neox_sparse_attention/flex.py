"""The op `block_sparse_attention` by torch's FlexAttention (arXiv:2412.05496), compiled for the mask of a layout.

It works in blocks of 128 tokens: smaller ones of a layout are told apart within them. On a GPU it trains; on a CPU it
has no backward pass, and no dropout anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import lru_cache
from typing import Any

import torch
from neox_gpt.api import TILE, BlockTable, Request, SparseUse, flex_by, tile_lists
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

_MASKS = 256


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
        """As `neox_gpt.attention.blocked.blocked_attention`. Raises ValueError for what `why_not_for` refuses."""
        table = request.blocks
        if table is None:
            raise ValueError("block-sparse attention needs a table")
        if reasons := self.why_not_for(SparseUse((table.block,), dropout=request.drops)):
            raise ValueError(f"not by FlexAttention: {', '.join(reasons)}")
        mask = (
            block_mask(table, query.shape[2]) if request.documents is None else _of_documents(table, request.documents)
        )
        return flex_by(mask, query.to(value.dtype), key.to(value.dtype), value, request)

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


@torch._disable_dynamo  # noqa: SLF001  a compiled layer would build it again, and copy the layout from the host
@lru_cache(maxsize=_MASKS)
def block_mask(table: BlockTable, seq: int, *, full: bool = True) -> BlockMask:
    """The table's mask for `seq` tokens. full: tiles without a token that is not seen are told apart."""
    layout, block = table.layout, table.block

    def seen(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return layout[head, query // block, key // block] & (key <= query)

    size = max(TILE, block)
    per, tiles = size // block, -(-seq // size)
    padding = tiles * per - table.num_blocks
    padded = F.pad(layout, (0, padding, 0, padding)) if padding > 0 else layout[:, : tiles * per, : tiles * per]
    parts = padded.view(table.num_heads, tiles, per, tiles, per)
    some, whole = parts.any(4).any(2), parts.all(4).all(2).tril(-1)
    if not full:
        whole = torch.zeros_like(whole)
    lists = [each for tile in (some & ~whole, whole) for each in tile_lists(tile[None])]
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=size, mask_mod=seen, seq_lengths=(seq, seq))


def _of_documents(table: BlockTable, documents: Tensor) -> BlockMask:
    of_table = block_mask(table, documents.shape[1], full=False)

    def seen(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = documents[sample, query] == documents[sample, key]
        return own & of_table.mask_mod(sample, head, query, key)

    mask = copy(of_table)
    mask.mask_mod = seen
    return mask


KERNEL = Flex()
