"""Windows of chosen sizes, chosen global blocks, random blocks: fixed, with every part to choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from neox_sparse_attention.blocks import add_random, global_blocks, lower, windows

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor

    from neox_sparse_attention.settings import VariableSettings


def variable(shape: LayoutShape, settings: VariableSettings) -> Tensor:
    """A block sees its window, the global blocks, and some drawn at random."""
    chosen = global_blocks(settings.global_block_indices, settings.global_block_end_indices, shape.num_blocks)
    one = windows(settings.local_window_blocks, shape.num_blocks) | chosen[None, :]
    if settings.horizontal_global_attention:
        one = one | chosen[:, None]
    causal = settings.attention == "unidirectional"
    if causal:
        one = one & lower(shape.num_blocks)
    per_head = settings.different_layout_per_head
    return add_random(one, settings.num_random_blocks, evolve(shape, causal=causal), per_head=per_head)
