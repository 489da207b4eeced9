"""Sliding windows: a token sees itself and so many tokens before it, in time and memory that go with the window."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from attrs import evolve
from torch import Tensor

from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.flex import causal_mask, document_mask, flex_by
from neox_gpt.attention.sparse import BlockTable

if TYPE_CHECKING:
    from neox_gpt.attention.scores import Request

SMALLEST, LARGEST = 16, 128
"""Sides of the blocks of a band, in tokens: a power of two, no larger than a window."""


def windowed(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """As `scores.attend`, of all queries of a sequence that is longer than `request.window`.

    By FlexAttention on a GPU. Elsewhere by the blocks of a band, within which a rule tells what is too far back.
    """
    seq, window, documents = query.shape[2], request.window, request.documents
    if window is None:
        raise ValueError("attention in a window needs its width")
    if query.device.type == "cuda" and not request.drops:
        plain = documents is None
        mask = causal_mask(seq, query.device, window) if plain else document_mask(documents, window)
        return flex_by(mask, query, key, value, request)
    return _in_band(query, key, value, request, window)


@torch._disable_dynamo  # noqa: SLF001  a compiler would unroll its loops, and build the band again
def _in_band(query: Tensor, key: Tensor, value: Tensor, request: Request, window: int) -> Tensor:
    table = band(query.shape[1], query.shape[2], window, query.device)
    return blocked_attention(query, key, value, evolve(request, blocks=table))


@lru_cache(maxsize=64)
def band(num_heads: int, seq: int, window: int, device: torch.device) -> BlockTable:
    """The blocks of keys that hold a token in the window of some query of a block."""
    block = min(max(SMALLEST, 1 << (window + 1).bit_length() - 1), LARGEST)
    num_blocks = -(-seq // block)
    seen = torch.ones(num_blocks, num_blocks, dtype=torch.bool).tril().triu(-window // block)  # to the ceiling
    return BlockTable(seen.expand(num_heads, -1, -1), block, device)
