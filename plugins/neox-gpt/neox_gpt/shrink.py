"""A decoder without the heads and inner numbers that its model changes leave out of an export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from neox_gpt.config.plan import GPTPlan

HEADS, INNER = ".attention.output", ".mlp.up"
"""Ends of the names of layers whose units may be left out."""


@frozen(eq=False)
class Cutting:
    """What stays of a parameter along one dimension. places: int64, in their order."""

    dim: int
    places: Tensor

    def of(self, whole: Tensor) -> Tensor:
        return whole.index_select(self.dim, self.places)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        return *whole[: self.dim], len(self.places), *whole[self.dim + 1 :]


def shrink(plan: GPTPlan, kept: Mapping[str, Tensor]) -> tuple[GPTPlan, dict[str, Cutting]]:
    """The plan of the smaller decoder, and what stays of a parameter of `plan`, by name.

    kept: of a layer the units that stay, bool [units], see `LinearChange.kept`. Raises ConfigError where blocks would
    have different sizes, or a part of the decoder does not say which of its numbers belong to a unit.
    """
    cuttings: dict[str, Cutting] = {}
    smaller: dict[str, Any] = {}
    for name, units in kept.items():
        block = name.removesuffix(HEADS).removesuffix(INNER)
        if name.endswith(HEADS):
            cuttings |= _heads(plan, block, units)
        elif name.endswith(INNER):
            cuttings |= _inner(plan, block, units)
        else:
            raise ConfigError(f"a model change leaves units of {name} out, and only {HEADS} and {INNER} have some")
    for end, key in ((HEADS, "num_attention_heads"), (INNER, "intermediate_size")):
        counts = {int(units.sum()) for name, units in kept.items() if name.endswith(end)}
        blocks = sum(name.endswith(end) for name in kept)
        if counts and (len(counts) > 1 or blocks != len(plan.first_layers)):
            raise ConfigError(f"the layers would have different sizes of {key}, and a plan has one for all")
        if counts:
            smaller[key] = counts.pop()
    if "num_attention_heads" in smaller:
        smaller |= {"head_dim": plan.head_width}
        smaller |= {} if plan.num_kv_heads is None else {"num_kv_heads": smaller["num_attention_heads"]}
    return evolve(plan, **smaller), cuttings


def _heads(plan: GPTPlan, block: str, units: Tensor) -> dict[str, Cutting]:
    """The rows of qkv lie as [heads, 3, head_dim], the inputs of the output as [heads, head_dim]."""
    apart = plan.num_kv_heads in (None, plan.num_attention_heads) and plan.qk_norm != "all"
    if plan.mixers is not None or plan.layouts or not apart:
        raise ConfigError("heads can be left out of softmax attention whose heads have keys of their own")
    width = plan.head_width
    rows, columns = _places(units.repeat_interleave(3 * width)), _places(units.repeat_interleave(width))
    qkv = Cutting(0, rows)
    cuttings = {f"{block}.attention.qkv.weight": qkv, f"{block}.attention.qkv.bias": qkv}
    return {**cuttings, f"{block}.attention.output.weight": Cutting(1, columns)}


def _inner(plan: GPTPlan, block: str, units: Tensor) -> dict[str, Cutting]:
    """A gated activation takes value and gate side by side."""
    if plan.feed_forwards is not None:
        raise ConfigError("inner numbers can be left out of the MLP, mlp-type regular")
    activation = plan.activation.make()
    if not activation.gated and activation(torch.zeros(1)).item() != 0:
        raise ConfigError(f"{plan.activation.name} of 0 is not 0, so what is pruned cannot be left out")
    up = Cutting(0, _places(units.repeat(2 if activation.gated else 1)))
    cuttings = {f"{block}.mlp.up.weight": up, f"{block}.mlp.up.bias": up}
    return {**cuttings, f"{block}.mlp.down.weight": Cutting(1, _places(units))}


def _places(units: Tensor) -> Tensor:
    return units.nonzero()[:, 0]
