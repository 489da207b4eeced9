"""Every block: what the other layouts are measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neox_sparse_attention.blocks import lower

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor

    from neox_sparse_attention.settings import DenseSettings


def dense(shape: LayoutShape, settings: DenseSettings) -> Tensor:
    """All of the attention matrix that a block may see."""
    one = lower(shape.num_blocks)
    return (one if shape.causal else torch.ones_like(one)).expand(shape.num_heads, -1, -1)
