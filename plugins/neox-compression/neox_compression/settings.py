"""The block `compression_training`: one block for each technique."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attrs import Factory, frozen
from attrs import validators as v

from neox_core.api import setting


def _patterns(instance: Any, field: Any, value: Sequence[str]) -> None:
    if not value or not all(value):
        raise ValueError("must name a layer, such as [attention.qkv], or all: ['*']")
    from neox_compression.patterns import check_pattern

    for each in value:
        check_pattern(each)


def _some_patterns(instance: Any, field: Any, value: Sequence[str]) -> None:
    if value:
        _patterns(instance, field, value)


def _enabled(help: str) -> Any:
    return setting(False, help=help, origin="deepspeed")


def _offset() -> Any:
    return setting(
        0,
        help="Step from which it acts; the step before is the last one without it.",
        unit="steps",
        check=v.ge(0),
        origin="deepspeed",
    )


def _modules() -> Any:
    return setting(
        ("*",),
        help="Layers of the group: parts of their names, or regular expressions that match a part; '*' names all "
        "linear layers of blocks.",
        check=_patterns,
        origin="deepspeed",
    )


def _block(default: Any, help: str) -> Any:
    return setting(default, help=help, origin="deepspeed")


def _groups() -> Any:
    return setting(
        Factory(dict),
        help="Block: one block a group of layers, under a name of your choice.",
        origin="deepspeed",
        each="group",
    )


@frozen
class MixedQuantize:
    """A blend of whole and rounded weights."""

    enabled: bool = _enabled("Blend the weights with the rounded ones, whose share grows at each step.")
    quantize_change_ratio: float = setting(
        0.001,
        help="Growth of the rounded share at each step, from 0; it starts again when the bits fall.",
        unit="fraction",
        check=v.and_(v.gt(0), v.le(1)),
        origin="deepspeed",
    )


@frozen
class WeightShared:
    """What all groups of weight quantization share."""

    enabled: bool = _enabled("Round weights to few bits.")
    schedule_offset: int = _offset()
    quantize_groups: int = setting(
        1,
        help="Equal parts of a matrix, in the order of its rows, each with its own scale.",
        check=v.gt(0),
        origin="deepspeed",
    )
    quantize_verbose: bool = setting(
        False, help="Print each change of the number of bits.", changes="output", origin="deepspeed"
    )
    quantization_type: Literal["symmetric", "asymmetric"] = setting(
        "symmetric", help="Whether the range of values is centred on zero.", origin="deepspeed"
    )
    rounding: Literal["nearest", "stochastic"] = setting(
        "nearest", help="Round to the nearest value, or to one of the two nearest by chance.", origin="deepspeed"
    )
    quantize_weight_in_forward: bool = setting(
        False,
        help="Round in each forward pass; false: once after each step of the optimizer, which needs weights in half "
        "precision.",
        origin="deepspeed",
    )
    fp16_mixed_quantize: MixedQuantize = _block(MixedQuantize(), "Block: blend whole and rounded weights.")


@frozen
class WeightParams:
    """The precision of the weights of a group."""

    start_bits: int = setting(
        8, help="Bits at the start.", unit="bits", check=v.and_(v.ge(1), v.le(16)), origin="deepspeed"
    )
    target_bits: int = setting(
        8, help="Bits at the end.", unit="bits", check=v.and_(v.ge(1), v.le(16)), origin="deepspeed"
    )
    quantization_period: int = setting(
        1, help="Steps until the bits fall by one.", unit="steps", check=v.gt(0), origin="deepspeed"
    )


@frozen
class WeightGroup:
    """Layers whose weights have the same precision."""

    params: WeightParams = _block(WeightParams(), "Block of the group's settings.")
    modules: tuple[str, ...] = _modules()


@frozen
class WeightQuantization:
    """Weights of few bits."""

    shared_parameters: WeightShared = _block(WeightShared(), "Block of what all groups share.")
    different_groups: dict[str, WeightGroup] = _groups()


@frozen
class ActivationShared:
    """What all groups of activation quantization share."""

    enabled: bool = _enabled("Round the inputs of layers to few bits.")
    schedule_offset: int = _offset()
    quantization_type: Literal["symmetric", "asymmetric"] = setting(
        "symmetric", help="Whether the range of values is centred on zero.", origin="deepspeed"
    )
    range_calibration: Literal["dynamic", "static"] = setting(
        "static",
        help="The range of values: that of each token (dynamic), or a running average over steps (static).",
        origin="deepspeed",
    )


@frozen
class ActivationParams:
    """The precision of the inputs of a group."""

    bits: int = setting(
        8, help="Bits of an activation.", unit="bits", check=v.and_(v.ge(4), v.le(16)), origin="deepspeed"
    )


@frozen
class ActivationGroup:
    """Layers whose inputs have the same precision."""

    params: ActivationParams = _block(ActivationParams(), "Block of the group's settings.")
    modules: tuple[str, ...] = _modules()


@frozen
class ActivationQuantization:
    """Activations of few bits."""

    shared_parameters: ActivationShared = _block(ActivationShared(), "Block of what all groups share.")
    different_groups: dict[str, ActivationGroup] = _groups()


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

    params: PruningParams = _block(PruningParams(), "Block of the group's settings.")
    modules: tuple[str, ...] = _modules()


def _method() -> Any:
    return setting(
        "l1",
        help="What stays: what is largest at the step schedule_offset (l1), or has the highest trained scores (topk).",
        origin="deepspeed",
    )


@frozen
class SparseShared:
    """What all groups of sparse pruning share."""

    enabled: bool = _enabled("Set single weights to zero.")
    schedule_offset: int = _offset()
    method: Literal["l1", "topk", "snip_momentum"] = _method()
    excluded_modules: tuple[str, ...] = setting(
        (), help="Layers that are left alone, named as in modules.", check=_some_patterns, origin="deepspeed"
    )


@frozen
class SparsePruning:
    """Weights without some of their numbers."""

    shared_parameters: SparseShared = _block(SparseShared(), "Block of what all groups share.")
    different_groups: dict[str, PruningGroup] = _groups()


@frozen
class RowShared:
    """What all groups of row pruning share."""

    enabled: bool = _enabled("Set rows of weights, and their biases, to zero.")
    schedule_offset: int = _offset()
    method: Literal["l1", "topk"] = _method()


@frozen
class RowPruning:
    """Weights without some of their rows."""

    shared_parameters: RowShared = _block(RowShared(), "Block of what all groups share.")
    different_groups: dict[str, PruningGroup] = _groups()


@frozen
class HeadShared:
    """What all groups of head pruning share."""

    enabled: bool = _enabled("Set what attention's output takes of some heads to zero.")
    schedule_offset: int = _offset()
    method: Literal["topk"] = setting(
        "topk", help="The heads with the highest of scores that are trained stay.", origin="deepspeed"
    )
    num_heads: int | None = setting(
        None, help="Heads of the model: num-attention-heads.", check=v.optional(v.gt(0)), origin="deepspeed"
    )


@frozen
class HeadPruning:
    """Attention without some of its heads."""

    shared_parameters: HeadShared = _block(HeadShared(), "Block of what all groups share.")
    different_groups: dict[str, PruningGroup] = _groups()


@frozen
class ChannelShared:
    """What all groups of channel pruning share."""

    enabled: bool = _enabled("For convolutions, which a decoder does not have: must be false.")
    schedule_offset: int = _offset()
    method: Literal["l1", "topk"] = _method()


@frozen
class ChannelPruning:
    """Convolutions without some of their channels; not for decoders."""

    shared_parameters: ChannelShared = _block(ChannelShared(), "Block of what all groups share.")
    different_groups: dict[str, PruningGroup] = _groups()


@frozen
class CompressionBlock:
    """Techniques that shrink a model while it trains."""

    weight_quantization: WeightQuantization = _block(WeightQuantization(), "Block: weights are rounded to few bits.")
    activation_quantization: ActivationQuantization = _block(
        ActivationQuantization(), "Block: activations are rounded to few bits."
    )
    sparse_pruning: SparsePruning = _block(SparsePruning(), "Block: single weights are set to zero.")
    row_pruning: RowPruning = _block(RowPruning(), "Block: rows of weights are set to zero.")
    head_pruning: HeadPruning = _block(HeadPruning(), "Block: attention heads are set to zero.")
    channel_pruning: ChannelPruning = _block(ChannelPruning(), "Block: channels of convolutions; not for decoders.")


@frozen
class CompressionSettings:
    compression_training: CompressionBlock = _block(
        CompressionBlock(), "Block of the techniques that shrink a model while it trains."
    )

    @property
    def enabled(self) -> bool:
        return any(technique.shared_parameters.enabled for _, technique in techniques(self.compression_training))


def techniques(block: CompressionBlock) -> list[tuple[str, Any]]:
    """Each technique's block by name."""
    return [(each.name, getattr(block, each.name)) for each in CompressionBlock.__attrs_attrs__]
