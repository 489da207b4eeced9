"""Random, sliding and global blocks (arXiv:2007.14062)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_sparse_attention.blocks import add_random, global_blocks, lower, sliding

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor

    from neox_sparse_attention.settings import BigBirdSettings


def bigbird(shape: LayoutShape, settings: BigBirdSettings) -> Tensor:
    """A block sees its neighbours, the first blocks, and some drawn at random; the first blocks see all."""
    first = global_blocks((0,), (settings.num_global_blocks,), shape.num_blocks)
    one = sliding(settings.num_sliding_window_blocks, shape.num_blocks) | first[None, :] | first[:, None]
    if shape.causal:
        one = one & lower(shape.num_blocks)
    return add_random(one, settings.num_random_blocks, shape, per_head=settings.different_layout_per_head)
