"""Masks of weights, as DeepSpeed 0.19.6 makes them (MLPruning, arXiv:2105.14636)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neox_compression.straight import beside, straight

if TYPE_CHECKING:
    from neox_compression.change import Compressed
    from neox_compression.plan import Pruning


def mask_of(scores: Tensor, ratio: float) -> Tensor:
    """1 where a number is among the largest `ratio` of all of `scores`, rounded up, and 0 elsewhere: the same shape."""
    order = scores.flatten().sort(descending=True).indices
    mask = torch.zeros_like(scores).flatten()
    mask[order[: math.ceil(ratio * scores.numel())]] = 1
    return mask.view(scores.shape)


def sizes_of(weight: Tensor, what: str) -> Tensor:
    """What `l1` compares of a whole weight [outputs, inputs]: of single numbers, or of rows [outputs, 1]."""
    return weight.abs() if what == "sparse" else torch.linalg.vector_norm(weight, 1, dim=1, keepdim=True)


def over_sections(each: Tensor, sections: int, ratio: float) -> Tensor:
    """The mask of `each`, [outputs, 1], where as many rows at a time go as there are sections: value and gate."""
    return mask_of(each.view(sections, -1, 1).sum(0), ratio).repeat(sections, 1)


class Pruned:
    """One way in which a layer is pruned."""

    def __init__(self, owner: Compressed, pruning: Pruning) -> None:
        self._owner = [owner]
        self._pruning = pruning
        self._begins = False

    def at_step(self, step: int) -> None:
        self._begins = step == self._pruning.offset and not self._pruning.learned

    def pruned(self, found: Tensor, weight: Tensor) -> Tensor:
        """`found`, of `weight` of this rank, times a mask; itself before the first step."""
        if self._acts():
            return found * self._mask_of(weight).to(found.dtype)
        return beside(found, self._parameter()) if self._pruning.learned else found

    def _mask_of(self, weight: Tensor) -> Tensor:
        """What `weight` is multiplied by, which broadcasts to it."""
        owner, pruning = self._owner[0], self._pruning
        if self._begins and owner.training:
            with torch.no_grad():
                made = self._of(sizes_of(owner.whole(weight), pruning.what))
                self._parameter().copy_(owner.own_part(pruning.name, made))
            self._begins = False
        mask = self._mask(owner.shared(pruning.name))
        if pruning.what != "head":
            return mask
        return mask.repeat_interleave(weight.shape[1] // mask.shape[1], dim=1)

    def bias_mask(self) -> Tensor | None:
        """[outputs of this rank]; None: the bias stays. Every rank has the whole gradient of a whole bias."""
        acts = self._pruning.what == "row" and self._acts()
        return self._mask(self._parameter()).view(-1) if acts else None

    def _acts(self) -> bool:
        step = self._owner[0].step
        return step is None or step >= self._pruning.offset

    def _parameter(self) -> Tensor:
        return self._owner[0].get_parameter(self._pruning.name)

    def _mask(self, given: Tensor) -> Tensor:
        if not self._pruning.learned:
            return given
        owner, name = self._owner[0], self._pruning.name
        whole = self._of(owner.whole_of(name, given.detach()))
        return straight(given, owner.own_part(name, whole))

    def _of(self, whole: Tensor) -> Tensor:
        pruning, sections = self._pruning, len(self._owner[0].linear.sections)
        if pruning.what == "row" and pruning.shrinks:
            return over_sections(whole, sections, pruning.ratio)
        return mask_of(whole, pruning.ratio)

    def kept(self) -> Tensor | None:
        """The units that an export has, bool, of a whole layer; None: all, some of which are zero."""
        if not self._pruning.shrinks:
            return None
        mask = self._mask(self._parameter().detach()).view(-1) > 0
        sections = len(self._owner[0].linear.sections) if self._pruning.what == "row" else 1
        return mask[: len(mask) // sections]
