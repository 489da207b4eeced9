"""What can be wrong in a block `compression_training` whose values are all allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neox_gpt.api import LinearShape, linear_layers, weight_type

from neox_compression.config.check.pruning import related_problems, snip_problems
from neox_compression.config.check.teacher import reduction_problems
from neox_compression.config.sections.pruning import HeadPruning, RowPruning
from neox_compression.config.sections.quantization import ActivationQuantization, WeightQuantization
from neox_compression.patterns import has
from neox_compression.plan import SNIP
from neox_compression.settings import CompressionSettings, techniques
from neox_core.api import Problem

BLOCK = "compression_training"


def problems(config: Any, settings: CompressionSettings) -> Iterator[Problem]:
    """All problems of an enabled block. config: whose other values are valid."""
    layers = linear_layers(config) or ()
    reduction = settings.compression_training.layer_reduction
    if reduction.enabled:
        yield from reduction_problems(config, reduction, f"{BLOCK}.layer_reduction")
    for name, technique in techniques(settings.compression_training):
        at = f"{BLOCK}.{name}"
        if not technique.shared_parameters.enabled:
            continue
        if technique is settings.compression_training.channel_pruning:
            message = "is for convolutions, and a decoder has none"
            yield config.problem(
                message, f"{at}.shared_parameters.enabled", "row_pruning removes outputs of linear layers"
            )
            continue
        if technique is settings.compression_training.sparse_pruning:
            yield from snip_problems(config, technique, at, layers)
            if technique.shared_parameters.method == SNIP:
                continue
        if not technique.different_groups:
            fix = f"{at}.different_groups: {{all: {{modules: ['*']}}}}"
            yield config.problem("is enabled but names no layers", at, fix)
        yield from _groups(config, technique.different_groups, f"{at}.different_groups", layers)
        if isinstance(technique, WeightQuantization):
            yield from _weights(config, technique, at, layers)
        if isinstance(technique, ActivationQuantization):
            message = "makes a model that cannot be exported: published models do not round inputs"
            yield config.problem(message, f"{at}.shared_parameters.enabled", severity="note")
            yield from _ranges(config, technique, at)
        if isinstance(technique, HeadPruning):
            yield from _heads(config, technique, at, layers)
            if any(each.related_modules for each in technique.different_groups.values()):
                message = "leaves fewer heads of the same width in an export, which only some families have"
                yield config.problem(message, f"{at}.different_groups", severity="note")
        if isinstance(technique, HeadPruning | RowPruning):
            yield from related_problems(config, technique, at, layers)


def _ranges(config: Any, technique: ActivationQuantization, at: str) -> Iterator[Problem]:
    """Each stage of a pipeline would keep the range of its own inputs of a block; a checkpoint has that of one."""
    shared = config.value("num_unique_layers") not in (None, config.value("num_layers"))
    staged, kept = (config.value("pipe_parallel_size") or 0) > 1, technique.shared_parameters.range_calibration
    if shared and staged and kept == "static":
        message = "keeps the range of a layer's inputs, and stages of the pipeline share layers"
        yield config.problem(message, f"{at}.shared_parameters.range_calibration", "range_calibration: dynamic")


def _groups(config: Any, groups: dict[str, Any], at: str, layers: tuple[LinearShape, ...]) -> Iterator[Problem]:
    """Each group has layers, and no layer is in two."""
    owners: dict[str, str] = {}
    for name, group in groups.items():
        mine = [each.name for each in layers if has(group.modules, each.name)]
        if layers and not mine:
            message = f"matches no linear layer of a block, such as {layers[0].name}"
            yield config.problem(message, f"{at}.{name}.modules", "name other layers, or ['*'] for all")
        twice = next((each for each in mine if each in owners), None)
        if twice is not None:
            message = f"{twice} is in the group {owners[twice]!r} too"
            yield config.problem(message, f"{at}.{name}.modules", "let one group have it")
        owners |= dict.fromkeys(mine, name)


def _heads(config: Any, technique: HeadPruning, at: str, layers: tuple[LinearShape, ...]) -> Iterator[Problem]:
    """Heads are columns of the output of attention."""
    heads, given = config.value("num_attention_heads"), technique.shared_parameters.num_heads
    if given != heads:
        message = "is required" if given is None else f"{given} is not num-attention-heads, {heads}"
        yield config.problem(message, f"{at}.shared_parameters.num_heads", f"num_heads: {heads}")
    for name, group in technique.different_groups.items():
        other = next((each for each in layers if has(group.modules, each.name) and not _joins_heads(each)), None)
        if other is not None:
            message = f"{other.name} does not join the heads of attention"
            yield config.problem(message, f"{at}.different_groups.{name}.modules", "modules: [attention.output]")


def _joins_heads(layer: LinearShape) -> bool:
    return layer.name.endswith("attention.output")


def _weights(config: Any, technique: WeightQuantization, at: str, layers: tuple[LinearShape, ...]) -> Iterator[Problem]:
    shared = technique.shared_parameters
    if not shared.quantize_weight_in_forward and weight_type(config) == "fp32":
        message = "false rounds the half-precision copy of weights, and this run trains in fp32 without one"
        yield config.problem(
            message, f"{at}.shared_parameters.quantize_weight_in_forward", "quantize_weight_in_forward: true"
        )
    for name, group in technique.different_groups.items():
        inner = f"{at}.different_groups.{name}"
        params = group.params
        if params.target_bits > params.start_bits:
            message = f"{params.target_bits} is above start_bits {params.start_bits}"
            yield config.problem(message, f"{inner}.params.target_bits", "the bits fall: start higher")
        if params.target_bits < 3 and (shared.quantization_type, shared.rounding) != ("symmetric", "nearest"):
            message = f"{params.target_bits} needs quantization_type symmetric and rounding nearest"
            yield config.problem(message, f"{inner}.params.target_bits", "target_bits: 3, or more")
        for each in layers:
            if has(group.modules, each.name) and each.inputs * each.outputs % shared.quantize_groups:
                message = f"the {each.outputs} x {each.inputs} numbers of {each.name} cannot be split into equal parts"
                yield config.problem(message, f"{at}.shared_parameters.quantize_groups", "quantize_groups: 1")
                break
