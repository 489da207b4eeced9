"""The blocks of pruning."""

from __future__ import annotations

from typing import Any, Literal

from attrs import frozen
from attrs import validators as v

from neox_compression.config.sections.fields import (
    block,
    enabled,
    groups,
    lists_of_patterns,
    modules,
    offset,
    some_patterns,
)
from neox_core.api import setting


@frozen
class PruningParams:
    """How much of the layers of a group stays."""

    dense_ratio: float = setting(
        0.5,
        help="Share of the weights, rows or heads of a layer that stays.",
        unit="fraction",
        check=v.and_(v.gt(0), v.le(1)),
        origin="deepspeed",
    )


@frozen
class PruningGroup:
    """Layers of which the same share stays."""

    params: PruningParams = block(PruningParams(), "Block of the group's settings.")
    modules: tuple[str, ...] = modules()


def _method() -> Any:
    return setting(
        "l1",
        help="What stays: what is largest at the step schedule_offset (l1), or has the highest trained scores (topk).",
        origin="deepspeed",
    )


def _related() -> Any:
    return setting(
        None,
        help="For each of modules, the layers that an export shrinks with it. Default: none, and an export has zeros.",
        check=lists_of_patterns,
        origin="deepspeed",
    )


@frozen
class ShrinkingGroup(PruningGroup):
    """Layers of which the same share stays, and those that follow them."""

    related_modules: tuple[tuple[str, ...], ...] | None = _related()


def _pattern(instance: Any, field: Any, value: str) -> None:
    sides = value.split(":" if ":" in value else "x")
    if len(sides) != 2 or not all(side.isascii() and side.isdigit() and 0 < int(side) <= 1024 for side in sides):
        raise ValueError("must be rows x inputs of a block, such as 4x1, or zeros of so many inputs, such as 2:4")
    if ":" in value and int(sides[0]) >= int(sides[1]):
        raise ValueError("must leave something: the first number is the zeros of each group of the second")


@frozen
class SparseShared:
    """What all groups of sparse pruning share."""

    enabled: bool = enabled("Set single weights to zero.")
    schedule_offset: int = offset()
    method: Literal["l1", "topk", "snip_momentum"] = setting(
        "l1",
        help="What stays: what is largest at the step schedule_offset (l1), has the highest trained scores (topk), or "
        "the blocks of all layers whose weights times gradients are largest (snip_momentum).",
        origin="deepspeed",
    )
    schedule_offset_end: int = setting(
        0,
        help="Last step that changes what snip_momentum sets to zero.",
        unit="steps",
        check=v.ge(0),
        origin="deepspeed",
    )
    schedule_offset_stride: int = setting(
        1,
        help="Steps between two changes of what snip_momentum sets to zero.",
        unit="steps",
        check=v.gt(0),
        origin="deepspeed",
    )
    block_pattern: str = setting(
        "4x1",
        help="What snip_momentum sets to zero together: outputs x inputs of a block, or as 2:4 the zeros in each group "
        "of inputs.",
        check=_pattern,
        origin="deepspeed",
    )
    dense_ratio: float = setting(
        0.1,
        help="Share of the weights of all layers that snip_momentum leaves.",
        unit="fraction",
        check=v.and_(v.gt(0), v.le(1)),
        origin="deepspeed",
    )
    excluded_modules: tuple[str, ...] = setting(
        (), help="Layers that are left alone, named as in modules.", check=some_patterns, origin="deepspeed"
    )


@frozen
class SparsePruning:
    """Weights without some of their numbers."""

    shared_parameters: SparseShared = block(SparseShared(), "Block of what all groups share.")
    different_groups: dict[str, PruningGroup] = groups()


@frozen
class RowShared:
    """What all groups of row pruning share."""

    enabled: bool = enabled("Set rows of weights, and their biases, to zero.")
    schedule_offset: int = offset()
    method: Literal["l1", "topk"] = _method()


@frozen
class RowPruning:
    """Weights without some of their rows."""

    shared_parameters: RowShared = block(RowShared(), "Block of what all groups share.")
    different_groups: dict[str, ShrinkingGroup] = groups()


@frozen
class HeadShared:
    """What all groups of head pruning share."""

    enabled: bool = enabled("Set what attention's output takes of some heads to zero.")
    schedule_offset: int = offset()
    method: Literal["topk"] = setting(
        "topk", help="The heads with the highest of scores that are trained stay.", origin="deepspeed"
    )
    num_heads: int | None = setting(
        None, help="Heads of the model: num-attention-heads.", check=v.optional(v.gt(0)), origin="deepspeed"
    )


@frozen
class HeadPruning:
    """Attention without some of its heads."""

    shared_parameters: HeadShared = block(HeadShared(), "Block of what all groups share.")
    different_groups: dict[str, ShrinkingGroup] = groups()


@frozen
class ChannelShared(RowShared):
    """What all groups of channel pruning share."""

    enabled: bool = enabled("For convolutions, which a decoder does not have: must be false.")


@frozen
class ChannelPruning(RowPruning):
    """Convolutions without some of their channels; not for decoders."""

    shared_parameters: ChannelShared = block(ChannelShared(), "Block of what all groups share.")
