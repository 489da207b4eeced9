"""What several layouts are made of. All masks are bool [query blocks, key blocks] of one head."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.contracts import LayoutShape


def lower(num_blocks: int) -> Tensor:
    """What is not ahead."""
    return torch.ones(num_blocks, num_blocks, dtype=torch.bool).tril()


def windows(sizes: Sequence[int], num_blocks: int) -> Tensor:
    """Windows side by side, each block seeing its own; the last size repeats."""
    window = torch.empty(num_blocks, dtype=torch.int64)
    first = number = 0
    while first < num_blocks:
        size = sizes[min(number, len(sizes) - 1)]
        window[first : first + size] = number
        first, number = first + size, number + 1
    return window[:, None] == window[None, :]


def sliding(width: int, num_blocks: int) -> Tensor:
    """A window around each block: `width // 2` blocks on either side and itself."""
    index = torch.arange(num_blocks)
    return (index[:, None] - index[None, :]).abs() <= width // 2


def global_blocks(starts: Sequence[int], ends: Sequence[int] | None, num_blocks: int) -> Tensor:
    """Those in the ranges from `starts` to `ends`, not included; without ends `starts` alone: bool [blocks]."""
    chosen = torch.zeros(num_blocks, dtype=torch.bool)
    for start, end in zip(starts, ends or [start + 1 for start in starts], strict=True):
        chosen[start:end] = True
    return chosen


def add_random(layout: Tensor, count: int, shape: LayoutShape, *, per_head: bool) -> Tensor:
    """`layout` [heads, blocks, blocks] with `count` more blocks in each row, or as many as are left to choose from.

    The draw follows from (seed, layer, head), or (seed, layer) where all heads have one layout.
    """
    if count == 0:
        return layout
    allowed = lower(shape.num_blocks) if shape.causal else torch.ones_like(layout[0])
    drawn = layout.clone()
    for head in range(shape.num_heads):
        scores = torch.rand(layout[head].shape, generator=_generator(shape, head if per_head else 0))
        scores.masked_fill_(layout[head] | ~allowed, -1.0)
        best = scores.topk(min(count, shape.num_blocks), dim=-1)
        drawn[head].scatter_(1, best.indices, (best.values >= 0) | layout[head].gather(1, best.indices))
    return drawn


def _generator(shape: LayoutShape, head: int) -> torch.Generator:
    name = f"sparse layout/{shape.seed}/{shape.layer}/{head}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)
    return torch.Generator().manual_seed(seed)
