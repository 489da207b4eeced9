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
class CompressionBlock:
    """Techniques that shrink a model while it trains."""

    weight_quantization: WeightQuantization = _block(WeightQuantization(), "Block: weights are rounded to few bits.")
    activation_quantization: ActivationQuantization = _block(
        ActivationQuantization(), "Block: activations are rounded to few bits."
    )


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
