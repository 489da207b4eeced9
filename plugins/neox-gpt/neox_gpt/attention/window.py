"""Sliding windows: a token sees itself and so many tokens before it, in time and memory that go with the window."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from attrs import evolve
from torch import Tensor
from torch.nn import functional as F

from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.flex import causal_mask, document_mask, flex_by
from neox_gpt.attention.sparse import BlockTable

if TYPE_CHECKING:
    from neox_gpt.attention.scores import Request

SMALLEST, LARGEST = 16, 128
"""Sides of the blocks of a band, in tokens: a power of two, no larger than a window."""
FEWEST, MOST = 64, 128
"""Queries that see one piece of the keys: a quarter of a window, which wastes a fifth of the products, or fewer."""


def windowed(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """As `scores.attend`, of all queries of a sequence that is longer than `request.window`.

    By FlexAttention on a GPU. Elsewhere by torch's fused attention, a piece of the sequence at a time. Where a bias,
    documents, a cap or dropout stand in its way, by the blocks of a band, in which a rule tells what is too far back.
    """
    seq, window, documents = query.shape[2], request.window, request.documents
    if window is None:
        raise ValueError("attention in a window needs its width")
    if query.device.type == "cuda" and not request.drops:
        plain = documents is None
        mask = causal_mask(seq, query.device, window) if plain else document_mask(documents, window)
        return flex_by(mask, query, key, value, request)
    if request.bias is None and documents is None and request.softcap is None and not request.drops:
        return _in_pieces(query, key, value, request.scale, window)
    return _in_band(query, key, value, request, window)


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
    """The first queries see all before them. A piece of the others sees a piece of the keys, longer by the window: all
    pieces of a sample are one batch under one mask. They overlap in memory, and nothing is copied for them.
    """
    grouped = query.shape[1] != key.shape[1]
    first = (each[:, :, :window] for each in (query, key, value))
    begun = F.scaled_dot_product_attention(*first, is_causal=True, scale=scale, enable_gqa=grouped)
    seq = query.shape[2]
    length = min(max(FEWEST, 1 << max(1, window // 4).bit_length() - 1), MOST)
    if padding := (window - seq) % length:
        query, key, value = (F.pad(each, (0, 0, 0, padding)) for each in (query, key, value))
    at = torch.arange(length + window, device=query.device)
    back = window + at[:length, None] - at
    seen = (back >= 0) & (back <= window)
    found = []
    for one, keys, values in zip(query[:, :, window:], key, value, strict=True):
        pieces = _pieces(one, length, length), *(_pieces(each, length + window, length) for each in (keys, values))
        attended = F.scaled_dot_product_attention(*pieces, seen, scale=scale, enable_gqa=grouped)
        found.append(attended.transpose(0, 1).flatten(1, 2))
    return torch.cat([begun, torch.stack(found)[:, :, : seq - window]], 2)


def _pieces(x: Tensor, length: int, step: int) -> Tensor:
    """[heads, seq, dim] -> [pieces, heads, length, dim], one each `step` tokens."""
    return x.unfold(1, length, step).permute(1, 0, 3, 2)


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
