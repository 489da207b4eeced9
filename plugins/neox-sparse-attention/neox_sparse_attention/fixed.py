"""Local windows, and in each window a few blocks that speak for it (Sparse Transformer, arXiv:1904.10509)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neox_sparse_attention.blocks import lower, windows

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor

    from neox_sparse_attention.settings import FixedSettings


def fixed(shape: LayoutShape, settings: FixedSettings) -> Tensor:
    """A block sees its window of `num_local_blocks`, and the global blocks of every window.

    The global blocks are the last `num_global_blocks` of a window; with several patterns head h has those h places
    further to the front. A last window that is cut short has its own at the same place, or at its end.
    """
    local = windows((settings.num_local_blocks,), shape.num_blocks)
    patterns = []
    for pattern in range(settings.num_different_global_patterns):
        chosen = _representatives(shape.num_blocks, pattern, settings)
        seen = local | chosen[None, :]
        if settings.horizontal_global_attention:
            seen |= chosen[:, None]
        patterns.append(seen & lower(shape.num_blocks) if settings.attention == "unidirectional" else seen)
    if len(patterns) == 1 or not settings.different_layout_per_head:
        return patterns[0].expand(shape.num_heads, -1, -1)
    return torch.stack([patterns[head % len(patterns)] for head in range(shape.num_heads)])


def _representatives(num_blocks: int, pattern: int, settings: FixedSettings) -> Tensor:
    """The global ones: bool [blocks]."""
    width, count = settings.num_local_blocks, settings.num_global_blocks
    place = width - (1 + pattern) * count
    chosen = torch.zeros(num_blocks, dtype=torch.bool)
    whole = num_blocks - num_blocks % width
    for window in range(0, whole, width):
        chosen[window + place : window + place + count] = True
    if whole < num_blocks:
        start = max(min(whole + place, num_blocks - count), 0)
        chosen[start : start + count] = True
    return chosen
