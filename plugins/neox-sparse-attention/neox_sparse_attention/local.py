"""Neighbours only: cost and memory grow with the sequence, not with its square."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_sparse_attention.blocks import lower, sliding

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor

    from neox_sparse_attention.settings import LocalSettings


def local(shape: LayoutShape, settings: LocalSettings) -> Tensor:
    """A block sees itself and half of `num_sliding_window_blocks - 1` blocks on either side."""
    one = sliding(settings.num_sliding_window_blocks, shape.num_blocks)
    return (one & lower(shape.num_blocks) if shape.causal else one).expand(shape.num_heads, -1, -1)
