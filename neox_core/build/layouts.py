"""The layouts that a plan names, as the tables that sparse attention works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neox_core.contracts.attention import LayoutShape
from neox_core.errors import PluginError
from neox_core.model.sparse import BlockTable

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.build.context import BuildContext
    from neox_core.plan.runfile import ComponentRef, ModelPlan


def build_tables(plan: ModelPlan, context: BuildContext) -> dict[int, BlockTable]:
    """By layer, the blocks that this rank's heads see; a layer that sees everything before it has none.

    Raises PluginError for a layout that cannot be loaded or that breaks its contract.
    """
    heads, tensor = plan.num_attention_heads, context.groups.tensor
    first, share = tensor.first(heads), tensor.share(heads)
    tables: dict[int, BlockTable] = {}
    latest: dict[int, BlockTable] = {}
    for layer, place in enumerate(plan.layout_of_layer):
        if place is None:
            continue
        layout, block = draw_layout(plan, layer, context.seed)
        layout = layout[first : first + share].contiguous()
        if place not in latest or not torch.equal(latest[place].layout.cpu(), layout):  # most layers have the same
            latest[place] = BlockTable(layout, block, context.device)
        tables[layer] = latest[place]
    return tables


def draw_layout(plan: ModelPlan, layer: int, seed: int) -> tuple[Tensor, int]:
    """(bool [heads, query blocks, key blocks], tokens of a block) of a layer that has a layout."""
    place = plan.layout_of_layer[layer]
    reference: ComponentRef = plan.layouts[place]  # type: ignore[index]
    make, settings = reference.load()
    blocks = plan.seq_length // settings.block
    layout = make(LayoutShape(blocks, plan.num_attention_heads, layer, seed), settings)
    wanted = (plan.num_attention_heads, blocks, blocks)
    if layout.dtype != torch.bool or tuple(layout.shape) != wanted or bool(layout.triu(1).any()):
        raise PluginError(f"{reference.name} makes no lower triangular layout of bool {list(wanted)}")
    return layout, settings.block
