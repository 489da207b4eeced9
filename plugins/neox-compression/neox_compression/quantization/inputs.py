"""Activation quantization of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neox_compression.quantization.rounding import round_in_range
from neox_compression.straight import straight

if TYPE_CHECKING:
    from neox_compression.change import Compressed
    from neox_compression.config.sections.quantization import ActivationParams, ActivationShared

MOMENTUM = 0.95
"""Weight of the past in the running range of inputs, as in DeepSpeed."""


class RoundedInput:
    """Activation quantization of a layer.

    A static range is that of the steps before: the extremes of each step count by 1 - MOMENTUM. The first step of
    `schedule_offset: 0` is computed with whole inputs, since nothing is known before it.
    """

    def __init__(self, owner: Compressed, params: ActivationParams, shared: ActivationShared) -> None:
        self._owner = [owner]
        self.static = shared.range_calibration == "static"
        self._symmetric, self._bits = shared.quantization_type == "symmetric", params.bits
        self._first = max(shared.schedule_offset, 1 if self.static else 0)
        self._begins = True

    def at_step(self, step: int) -> None:
        self._begins = True
        if not self.static or step < self._first:
            return
        owner = self._owner[0]
        with torch.no_grad():
            unknown = owner.range[0] == owner.range[1]
            mixed = MOMENTUM * owner.range + (1 - MOMENTUM) * owner.seen
            owner.range.copy_(torch.where(unknown, owner.seen, mixed))

    def rounded(self, x: Tensor) -> Tensor:
        """The input rounded to the bits of the group; in training its range is followed."""
        owner = self._owner[0]
        with torch.no_grad():
            if self.static and owner.training and owner.step is not None and owner.step >= self._first - 1:
                self._see(x.detach())
            if owner.step is not None and owner.step < self._first:
                return x
            wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
            low, high = self._range(wide)
            found = round_in_range(wide, low, high, self._bits, symmetric=self._symmetric).to(x.dtype)
        return straight(x, found)

    def _range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.static:
            known = self._owner[0].range.to(x.dtype)
            return known.amin(), known.amax()
        sides = torch.stack([-x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)])
        low, high = self._over_parts(sides)
        return -low, high

    def _see(self, x: Tensor) -> None:
        owner = self._owner[0]
        low, high = owner.highest(self._over_parts(torch.stack([-x.amin(), x.amax()])))
        if not self._begins:
            low, high = torch.maximum(low, -owner.seen[0]), torch.maximum(high, owner.seen[1])
        owner.seen.copy_(torch.stack([-low, high]))
        self._begins = False

    def _over_parts(self, sides: Tensor) -> Tensor:
        """The maximum over the ranks that have other inputs of the same tokens."""
        owner = self._owner[0]
        return owner.tensor.highest(sides) if owner.linear.split == "inputs" else sides
