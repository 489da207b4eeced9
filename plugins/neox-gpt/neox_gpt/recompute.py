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

from neox_gpt.faults import fault_in
from neox_gpt.routing import through_some

if TYPE_CHECKING:
    from neox_core.parallel.row import Recompute
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.block import Block
    from neox_gpt.contracts import Position
    from neox_gpt.scope import Scope

recompute_by_torch = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Keeps a segment's inputs only. Dropout follows from the samples, so there is no generator to put back."""


def recompute_parted(tensor: TensorParallel) -> Callable[..., Any]:
    """The same where all ranks of `tensor` have a segment's input: each keeps a part of it."""

    def by(function: Callable[..., Any], x: Tensor, *shared: Any) -> Any:
        def restored(part: Tensor, *shared: Any) -> Any:
            return function(tensor.restore(part), *shared)

        return recompute_by_torch(restored, tensor.keep(x), *shared)

    return by


def run_layers(
    blocks: Sequence[tuple[int, Block]],
    x: Tensor,
    position: Position,
    scope: Scope,
    recompute: Recompute | None = None,
) -> tuple[Tensor, Tensor | None]:
    """[batch, seq, hidden] through `blocks`, each with its place among all layers; -> [batch, seq, hidden].

    And the sum of what the blocks give besides, see `auxiliary`; None where none gives anything.
    """
    if recompute is None or not torch.is_grad_enabled():
        return _run(blocks, x, position, scope)
    prepared = scope.prepared
    shared, structure = tree_flatten(() if prepared is None else prepared)  # what recomputes takes tensors alone

    def segment(part: Sequence[tuple[int, Block]], x: Tensor, *leaves: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        own = None if prepared is None else tree_unflatten(list(leaves), structure)
        x, given = _run(part, x, position, evolve(scope, prepared=own))
        return x if given is None else (x, given)

    total = None
    for start in range(0, len(blocks), recompute.layers):
        x, given = apart(recompute.by(partial(segment, blocks[start : start + recompute.layers]), x, *shared))
        total = _sum(total, given)
    return x, total


def apart(result: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """What a layer gives: its tensor, and what it gives besides."""
    return (result, None) if isinstance(result, Tensor) else result


def _run(
    blocks: Sequence[tuple[int, Block]], x: Tensor, position: Position, scope: Scope
) -> tuple[Tensor, Tensor | None]:
    total = None
    for layer, block in blocks:
        # A generation's keys grow with every token: a compiled block would be compiled again and again.
        run = block if scope.cache is None else block.forward
        some = scope.routing is not None and scope.routing.applies(layer, x.shape[1])
        try:
            x, given = apart(through_some(run, x, position, scope, layer) if some else run(x, position, scope, layer))
        except Exception as error:
            if fault := fault_in(error, block.shape):
                raise fault from error
            raise
        total = _sum(total, given)
    return x, total


def _sum(total: Tensor | None, given: Tensor | None) -> Tensor | None:
    return given if total is None else total if given is None else total + given
