"""Which group a layer is in, and what a technique adds to it: asked on the host before a run starts, and in ranks."""

from __future__ import annotations

from typing import Any

from neox_gpt.api import ChangeSize, LinearShape

from neox_compression.patterns import has
from neox_compression.settings import CompressionSettings, techniques


def added_size(linear: LinearShape, settings: CompressionSettings) -> ChangeSize | None:
    """The parameters that a layer has for its techniques; None for a layer without one."""
    groups = groups_of(linear.name, settings)
    if not groups:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    activations = settings.compression_training.activation_quantization.shared_parameters
    if "activation_quantization" in groups and activations.range_calibration == "static":
        shapes |= {"range": (2,), "seen": (2,)}
    return ChangeSize(shapes)


def groups_of(name: str, settings: CompressionSettings) -> dict[str, Any]:
    """The settings of the first group that has the layer, by enabled technique that acts on it."""
    found = {}
    for technique, block in techniques(settings.compression_training):
        if block.shared_parameters.enabled:
            group = next((each for each in block.different_groups.values() if has(each.modules, name)), None)
            if group is not None:
                found[technique] = group.params
    return found
