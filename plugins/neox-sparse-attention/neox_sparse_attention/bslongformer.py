"""Longformer in blocks: sliding and global ones (arXiv:2004.05150)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_sparse_attention.blocks import global_blocks, lower, sliding

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor

    from neox_sparse_attention.settings import BSLongformerSettings


def bslongformer(shape: LayoutShape, settings: BSLongformerSettings) -> Tensor:
    """A block sees its neighbours and the global blocks, which see all."""
    chosen = global_blocks(settings.global_block_indices, settings.global_block_end_indices, shape.num_blocks)
    one = sliding(settings.num_sliding_window_blocks, shape.num_blocks) | chosen[None, :] | chosen[:, None]
    return (one & lower(shape.num_blocks) if shape.causal else one).expand(shape.num_heads, -1, -1)
