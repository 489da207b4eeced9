"""The layouts that a plan names, as the tables that sparse attention works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neox_gpt.attention.sparse import BlockTable
from neox_gpt.sparse_contracts import LayoutShape

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import ComponentRef
    from neox_gpt.config.plan import GPTPlan


def build_tables(plan: GPTPlan, context: BuildContext) -> dict[int, BlockTable]:
    """By layer, the blocks that this rank's heads see; a layer that sees everything it may has none.

    Raises PluginError for a layout that cannot be loaded or that breaks its contract.
    """
    heads, tensor = plan.num_attention_heads, context.groups.tensor
    first, share = tensor.first(heads), tensor.share(heads)
    tables: dict[int, BlockTable] = {}
    latest: dict[int, tuple[Tensor, BlockTable]] = {}
    for layer, place in enumerate(plan.layout_of_layer):
        if place is None:
            continue
        layout, block = draw_layout(plan, layer, context.seed)
        before = latest.get(place)
        if before is None or not torch.equal(_different(before[0]), _different(layout)):  # most layers have the same
            part = layout[first : first + share]
            latest[place] = layout, BlockTable(part, block, context.device, causal=plan.causal)
        tables[layer] = latest[place][1]
    return tables


def draw_layout(plan: GPTPlan, layer: int, seed: int) -> tuple[Tensor, int]:
    """(bool [heads, query blocks, key blocks], tokens of a block) of a layer that has a layout."""
    place = plan.layout_of_layer[layer]
    reference: ComponentRef = plan.layouts[place]  # type: ignore[index]  # this layer has one
    settings = reference.load()[1]
    blocks = plan.seq_length // settings.block
    layout = reference.make(LayoutShape(blocks, plan.num_attention_heads, layer, seed, plan.causal))
    wanted = (plan.num_attention_heads, blocks, blocks)
    fits = isinstance(layout, torch.Tensor) and layout.dtype == torch.bool and tuple(layout.shape) == wanted
    if not fits or (plan.causal and any(map(_ahead, _different(layout)))):
        form = "lower triangular layout" if plan.causal else "layout"
        raise reference.fault(f"makes no {form} of bool {list(wanted)}")
    return layout, settings.block


def _different(layout: Tensor) -> Tensor:
    """One head for all where all are the same memory."""
    return layout[:1] if layout.stride(0) == 0 else layout


def _ahead(seen: Tensor) -> bool:
    return bool(seen.triu(1).any())
