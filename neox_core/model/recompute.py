"""Running layers one after the other, and giving up what they hold until the backward pass needs it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from neox_core.contracts.model import Position
    from neox_core.model.block import Block
    from neox_core.model.scope import Scope

recompute_by_torch = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Keeps a segment's inputs only. Dropout follows from the samples, so there is no generator to put back."""


@frozen(eq=False)
class Recompute:
    """Activation checkpointing. layers: consecutive ones that make up a segment, of which the input alone is kept.

    by: calls a function with tensors, and calls it once more in the backward pass.
    """

    layers: int = 1
    by: Callable[..., Tensor] = recompute_by_torch


def run_layers(
    blocks: Sequence[tuple[int, Block]],
    x: Tensor,
    position: Position,
    scope: Scope,
    recompute: Recompute | None = None,
) -> Tensor:
    """[batch, seq, hidden] through `blocks`, each with its place among all layers; -> [batch, seq, hidden]."""
    if recompute is None or not torch.is_grad_enabled():
        return _run(blocks, x, position, scope)
    shared, structure = tree_flatten(scope.prepared)

    def segment(part: Sequence[tuple[int, Block]], x: Tensor, *prepared: Tensor) -> Tensor:
        return _run(part, x, position, evolve(scope, prepared=tree_unflatten(list(prepared), structure)))

    for start in range(0, len(blocks), recompute.layers):
        x = recompute.by(partial(segment, blocks[start : start + recompute.layers]), x, *shared)
    return x


def _run(blocks: Sequence[tuple[int, Block]], x: Tensor, position: Position, scope: Scope) -> Tensor:
    for layer, block in blocks:
        # A generation's keys grow with every token: a compiled block would be compiled again and again.
        run = block if scope.cache is None else block.forward
        x = run(x, position, scope, layer)
    return x
