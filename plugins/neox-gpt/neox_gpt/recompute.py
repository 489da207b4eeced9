"""Running layers one after the other, and giving up what they hold until the backward pass needs it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from neox_gpt.routing import through_some

if TYPE_CHECKING:
    from neox_core.parallel.row import Recompute
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.block import Block
    from neox_gpt.contracts import Position
    from neox_gpt.scope import Scope

recompute_by_torch = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Keeps a segment's inputs only. Dropout follows from the samples, so there is no generator to put back."""


def recompute_parted(tensor: TensorParallel) -> Callable[..., Tensor]:
    """The same where all ranks of `tensor` have a segment's input: each keeps a part of it."""

    def by(function: Callable[..., Tensor], x: Tensor, *shared: Any) -> Tensor:
        def restored(part: Tensor, *shared: Any) -> Tensor:
            return function(tensor.restore(part), *shared)

        result: Tensor = recompute_by_torch(restored, tensor.keep(x), *shared)
        return result

    return by


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
        some = scope.routing is not None and scope.routing.applies(layer, x.shape[1])
        x = through_some(run, x, position, scope, layer) if some else run(x, position, scope, layer)
    return x
