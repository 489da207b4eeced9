"""snip_momentum: pruning by how much the loss depends on the blocks of all layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor

from neox_compression.plan import SNIP_NAMES
from neox_compression.pruning.blocks import density_at, mask_of_blocks, pruned_blocks, reduced_scores
from neox_compression.pruning.pattern import Pattern

if TYPE_CHECKING:
    from neox_compression.change import Compressed
    from neox_compression.config.sections.pruning import SparseShared

KEPT = 0.9
"""Of a score, from one step to the next."""
MASK, SCORES, SEEN = SNIP_NAMES


class Snip:
    """What all layers that snip_momentum prunes have in common."""

    def __init__(self, shared: SparseShared) -> None:
        self.shared = shared
        self.pattern = Pattern.read(shared.block_pattern)
        self._layers: list[ref[Compressed]] = []
        self._step: int | None = None

    def join(self, layer: Compressed) -> None:
        self._layers.append(ref(layer))

    def at_step(self, step: int) -> None:
        """Bring scores and masks of all layers to a step. Collective over ranks that share layers."""
        if step == self._step:
            return
        self._step = step
        if step > self.shared.schedule_offset_end:
            return
        alive = [each for each in (layer() for layer in self._layers) if each is not None]
        layers = sorted(alive, key=lambda each: each.linear.name)
        with torch.no_grad():
            for each in layers:
                seen, scores = each.get_parameter(SEEN), each.get_parameter(SCORES)
                scores.mul_(KEPT).add_(seen.abs())
                seen.zero_()
            shared = self.shared
            steps = shared.schedule_offset, shared.schedule_offset_end, shared.schedule_offset_stride
            density = density_at(step, *steps, shared.dense_ratio)
            if density is not None:
                self._make_masks(layers, density)

    def _make_masks(self, layers: list[Compressed], density: float) -> None:
        reduced = [reduced_scores(self.pattern, _scores(each)) for each in layers]
        for each, pruned in zip(layers, pruned_blocks(reduced, self.pattern, density), strict=True):
            mask = mask_of_blocks(self.pattern, _scores(each), pruned)
            each.get_parameter(MASK).copy_(each.own_part(MASK, mask))


class SnipPruned:
    """One layer of it. The score of a weight is its size times its gradient's, and 0.9 of that of the step before."""

    def __init__(self, owner: Compressed, snip: Snip) -> None:
        self._owner, self._snip = [owner], snip
        snip.join(owner)

    def at_step(self, step: int) -> None:
        self._snip.at_step(step)

    def pruned(self, found: Tensor, weight: Tensor) -> Tensor:
        """`found`, of `weight` of this rank, times a mask; until pruning ends, its gradient is scored."""
        owner, shared = self._owner[0], self._snip.shared
        if owner.step is None or owner.step >= shared.schedule_offset:
            found = found * owner.get_parameter(MASK).to(found.dtype)
        if owner.training and owner.step is not None and owner.step < shared.schedule_offset_end:
            return _watched(found, self._see)
        return found

    def _see(self, product: Tensor) -> None:
        seen = self._owner[0].get_parameter(SEEN)
        seen.add_(self._owner[0].total(product).to(seen.dtype))

    def bias_mask(self) -> None:
        """None: every bias stays."""


def _scores(layer: Compressed) -> Tensor:
    """Of the whole layer, fp32 [outputs, inputs]."""
    return layer.whole_of(SCORES, layer.get_parameter(SCORES).detach()).float()


class _Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, see: Callable[[Tensor], None]) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.see = see
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.see(weight * grad)
        return grad, None


def _watched(weight: Tensor, see: Callable[[Tensor], None]) -> Tensor:
    """`weight`; its backward pass tells `see` the product with its gradient."""
    found: Tensor = _Watched.apply(weight, see)
    return found
