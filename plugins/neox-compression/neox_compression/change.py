"""What a layer computes with: rounded weights and inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from neox_gpt.api import LinearChange
from torch import Tensor, nn

from neox_compression.noise import noise_at
from neox_compression.plan import groups_of
from neox_compression.rounding import bits_at, round_in_range, round_weight, whole_share
from neox_compression.straight import straight
from neox_core.terminal import echo

if TYPE_CHECKING:
    from neox_gpt.api import LinearShape

    from neox_compression.settings import (
        ActivationParams,
        ActivationShared,
        CompressionSettings,
        WeightParams,
        WeightShared,
    )
    from neox_core.parallel.tensor import TensorParallel

MOMENTUM = 0.95
"""Weight of the past in the running range of inputs, as in DeepSpeed."""


class Compression:
    """Compresses the layers of the groups of each enabled technique."""

    draws = False
    state = frozenset({"range", "seen"})

    def __init__(self, settings: CompressionSettings) -> None:
        self._settings = settings

    def change(self, linear: LinearShape, tensor: TensorParallel) -> Compressed | None:
        groups = groups_of(linear.name, self._settings)
        return Compressed(linear, tensor, groups, self._settings) if groups else None

    def freezes(self, name: str) -> bool:
        return False


class Compressed(LinearChange):
    """One layer with its techniques. Without a step, as in an export, all of them act as at their end."""

    straight_through: ClassVar[bool] = True

    def __init__(
        self, linear: LinearShape, tensor: TensorParallel, groups: dict[str, Any], settings: CompressionSettings
    ) -> None:
        super().__init__(linear, tensor)
        block = settings.compression_training
        weights, inputs = groups.get("weight_quantization"), groups.get("activation_quantization")
        self.weights = (
            None if weights is None else RoundedWeight(self, weights, block.weight_quantization.shared_parameters)
        )
        self.inputs = (
            None if inputs is None else RoundedInput(self, inputs, block.activation_quantization.shared_parameters)
        )
        dim, sections = (1, (linear.inputs,)) if linear.split == "inputs" else (0, linear.sections)
        self._cut = tensor.cut(dim, sections)
        self.step: int | None = None
        if self.inputs is not None and self.inputs.static:
            self.range = nn.Parameter(torch.zeros(2), requires_grad=False)
            self.seen = nn.Parameter(torch.zeros(2), requires_grad=False)

    def at_step(self, step: int) -> None:
        for each in (self.weights, self.inputs):
            if each is not None and step != self.step:  # a step may be repeated
                each.at_step(step)
        self.step = step

    def change_weight(self, weight: Tensor) -> Tensor:
        return weight if self.weights is None else self.weights.rounded(weight)

    def change_input(self, x: Tensor) -> Tensor:
        return x if self.inputs is None else self.inputs.rounded(x)

    def folded(self, weight: Tensor) -> Tensor | None:
        return None if self.inputs is not None else self.change_weight(weight).detach()

    def whole(self, part: Tensor) -> Tensor:
        """The whole of what this rank has a part of as of the weight, without a gradient. Collective."""
        if self.tensor.size == 1:
            return part.detach()
        parts = self.tensor.gather_last(part.reshape(-1)).chunk(self.tensor.size)
        return self._cut.join([each.view(part.shape) for each in parts])

    def part(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole weight."""
        return whole if self.tensor.size == 1 else self._cut.of(whole).contiguous()


class RoundedWeight:
    """Weight quantization of a layer."""

    def __init__(self, owner: Compressed, params: WeightParams, shared: WeightShared) -> None:
        self._owner = [owner]  # a list, or torch would take it for a module within a module
        self._params, self._shared = params, shared
        self._schedule = params.start_bits, params.target_bits, params.quantization_period
        self._kept: tuple[tuple[Any, ...], Tensor] | None = None

    def at_step(self, step: int) -> None:
        self._kept = None
        since = step - self._shared.schedule_offset
        changes = since == 0 or (since > 0 and self.bits(since) != self.bits(since - 1))
        if self._shared.quantize_verbose and changes and self._owner[0].speaks:
            echo(f"{self._owner[0].linear.name}: weights have {self.bits(since)} bits from step {step} on", err=True)

    def bits(self, since: int | None) -> int:
        return self._params.target_bits if since is None else bits_at(since, *self._schedule)

    def rounded(self, weight: Tensor) -> Tensor:
        owner = self._owner[0]
        since = None if owner.step is None else owner.step - self._shared.schedule_offset
        if since is not None and since < 0:
            return weight
        if self._shared.quantize_weight_in_forward or not owner.training:
            return straight(weight, self._computed(weight.detach(), since))
        told = owner.step, weight.data_ptr(), weight._version, weight.dtype  # noqa: SLF001 no other way to see a change
        if self._kept is None or self._kept[0] != told:
            self._kept = told, self._computed(weight.detach(), since)
        return straight(weight, self._kept[1])

    def _computed(self, weight: Tensor, since: int | None) -> Tensor:
        owner, shared = self._owner[0], self._shared
        whole = owner.whole(weight)
        draws = shared.rounding == "stochastic" and since is not None
        noise = noise_at(owner.step or 0, owner.linear.name, whole.shape, whole.device) if draws else 0.0
        symmetric = shared.quantization_type == "symmetric"
        found = owner.part(
            round_weight(whole, self.bits(since), shared.quantize_groups, symmetric=symmetric, noise=noise)
        )
        mixed = shared.fp16_mixed_quantize
        if mixed.enabled and since is not None:
            share = whole_share(since, *self._schedule, mixed.quantize_change_ratio)
            return share * weight + (1 - share) * found
        return found


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
