"""A decoder without the heads and inner numbers that its model changes leave out of an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import frozen

from neox_core.errors import ConfigError
from neox_gpt.config.left_out import HEADS, INNER, smaller_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from neox_gpt.config.plan import GPTPlan


@frozen(eq=False)
class Cutting:
    """What stays of a parameter along one dimension. places: int64, in their order."""

    dim: int
    places: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """What stays of a whole parameter."""
        return whole.index_select(self.dim, self.places)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what stays of a parameter of shape `whole`."""
        return *whole[: self.dim], len(self.places), *whole[self.dim + 1 :]


def shrink(plan: GPTPlan, kept: Mapping[str, Tensor]) -> tuple[GPTPlan, dict[str, Cutting]]:
    """The plan of the smaller decoder, and what stays of a parameter of `plan`, by name.

    kept: of a layer the units that stay, bool [units], see `LinearChange.kept`. Raises ConfigError where blocks would
    have different sizes, or a part of the decoder does not say which of its numbers belong to a unit.
    """
    smaller = smaller_plan(plan, {name: int(units.sum()) for name, units in kept.items()})
    cuttings: dict[str, Cutting] = {}
    for name, units in kept.items():
        block = name.removesuffix(HEADS).removesuffix(INNER)
        part = _heads if name.endswith(HEADS) else _inner
        cuttings |= part(plan, block, units)
    return smaller, cuttings


def _heads(plan: GPTPlan, block: str, units: Tensor) -> dict[str, Cutting]:
    """The rows of qkv lie as [heads, 3, head_dim], the inputs of the output as [heads, head_dim]."""
    width = plan.head_width
    rows, columns = _places(units.repeat_interleave(3 * width)), _places(units.repeat_interleave(width))
    qkv = Cutting(0, rows)
    cuttings = {f"{block}.attention.qkv.weight": qkv, f"{block}.attention.qkv.bias": qkv}
    return {**cuttings, f"{block}.attention.output.weight": Cutting(1, columns)}


def _inner(plan: GPTPlan, block: str, units: Tensor) -> dict[str, Cutting]:
    """A gated activation takes value and gate side by side."""
    activation = plan.activation.make()
    if not activation.gated and activation(torch.zeros(1)).item() != 0:
        raise ConfigError(f"{plan.activation.name} of 0 is not 0, so what is pruned cannot be left out")
    up = Cutting(0, _places(units.repeat(2 if activation.gated else 1)))
    cuttings = {f"{block}.mlp.up.weight": up, f"{block}.mlp.up.bias": up}
    return {**cuttings, f"{block}.mlp.down.weight": Cutting(1, _places(units))}


def _places(units: Tensor) -> Tensor:
    return units.nonzero()[:, 0]
