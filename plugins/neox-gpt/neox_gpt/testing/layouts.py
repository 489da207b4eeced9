"""The check of a sparse layout against `neox_gpt.api.SparseLayout`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from neox_author.testing.clauses import clauses, hold
from neox_author.testing.plugins import build

from neox_gpt.sparse_contracts import LayoutShape

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

SHAPES = (  # the largest first: there two draws cannot be the same by chance
    LayoutShape(40, 2, seed=1),
    LayoutShape(16, 4, layer=5, seed=7),
    LayoutShape(13, 3, layer=2, seed=7),
    LayoutShape(1, 1),
    LayoutShape(12, 2, layer=1, seed=7, causal=False),
)


@clauses
def check_sparse_layout(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.SparseLayout` that the layout breaks."""
    entry = catalog.find("sparse layout", name)
    target, chosen = entry.load(), build(entry, **settings)
    block = getattr(chosen, "block", None)
    hold(isinstance(block, int) and block > 0, "the settings have `block`, the side of a block in tokens")
    for shape in SHAPES:
        layout = target(shape, chosen)
        hold(isinstance(layout, torch.Tensor), f"a layout is a tensor, not a {type(layout).__name__}")
        wanted = (shape.num_heads, shape.num_blocks, shape.num_blocks)
        hold(isinstance(layout, torch.Tensor) and layout.dtype == torch.bool, "a tensor of bool")
        hold(tuple(layout.shape) == wanted, f"[heads, query blocks, key blocks]: {wanted}, not {tuple(layout.shape)}")
        hold(layout.device.type == "cpu", "on the CPU")
        hold(not shape.causal or not layout.triu(1).any(), "lower triangular where the shape is causal")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(99)
            before = torch.random.get_rng_state()
            again = target(shape, chosen)
            hold(torch.equal(layout, again), "a pure function: what is random follows from (seed, layer, head)")
            hold(torch.equal(before, torch.random.get_rng_state()), "torch's own generator is left as it is")
