"""The blocks of weights and activations of few bits."""

from __future__ import annotations

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_compression.config.sections.fields import block, enabled, groups, modules, offset
from neox_core.api import setting


@frozen
class MixedQuantize:
    """A blend of whole and rounded weights."""

    enabled: bool = enabled("Blend the weights with the rounded ones, whose share grows at each step.")
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

    enabled: bool = enabled("Round weights to few bits.")
    schedule_offset: int = offset()
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
    fp16_mixed_quantize: MixedQuantize = block(MixedQuantize(), "Block: blend whole and rounded weights.")


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

    params: WeightParams = block(WeightParams(), "Block of the group's settings.")
    modules: tuple[str, ...] = modules()


@frozen
class WeightQuantization:
    """Weights of few bits."""

    shared_parameters: WeightShared = block(WeightShared(), "Block of what all groups share.")
    different_groups: dict[str, WeightGroup] = groups()


@frozen
class ActivationShared:
    """What all groups of activation quantization share."""

    enabled: bool = enabled("Round the inputs of layers to few bits.")
    schedule_offset: int = offset()
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

    params: ActivationParams = block(ActivationParams(), "Block of the group's settings.")
    modules: tuple[str, ...] = modules()


@frozen
class ActivationQuantization:
    """Activations of few bits."""

    shared_parameters: ActivationShared = block(ActivationShared(), "Block of what all groups share.")
    different_groups: dict[str, ActivationGroup] = groups()
