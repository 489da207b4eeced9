"""Weight quantization of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from neox_compression.quantization.noise import noise_at
from neox_compression.quantization.rounding import bits_at, round_weight, whole_share
from neox_compression.straight import straight
from neox_core.terminal import echo

if TYPE_CHECKING:
    from neox_compression.change import Compressed
    from neox_compression.config.sections.quantization import WeightParams, WeightShared


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
        """The bits after `since` steps of rounding; None: those at the end of the schedule."""
        return self._params.target_bits if since is None else bits_at(since, *self._schedule)

    def rounded(self, weight: Tensor) -> Tensor:
        """The weight rounded to the bits of this step."""
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
