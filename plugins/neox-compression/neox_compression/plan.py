"""Which group a layer is in, and what a technique adds to it: asked on the host before a run starts, and in ranks."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from neox_gpt.api import ChangeSize, LinearShape

from neox_compression.patterns import has
from neox_compression.settings import CompressionSettings, techniques


@frozen
class Pruning:
    """One way in which a layer is pruned.

    name, shape: of the parameter with scores or a mask, of the whole layer. split: along which dimension ranks have
    parts of it; None: each has all. offset: the step from which it acts. ratio: the share that stays.
    """

    what: str
    name: str
    shape: tuple[int, int]
    split: int | None
    learned: bool
    offset: int
    ratio: float


def added_size(linear: LinearShape, settings: CompressionSettings) -> ChangeSize | None:
    """The parameters that a layer has for its techniques; None for a layer without one."""
    groups = groups_of(linear.name, settings)
    if not groups:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    activations = settings.compression_training.activation_quantization.shared_parameters
    if "activation_quantization" in groups and activations.range_calibration == "static":
        shapes |= {"range": (2,), "seen": (2,)}
    if "channel_pruning" in groups:
        return ChangeSize()
    own = prunings(linear, groups, settings)
    shapes |= {each.name: each.shape for each in own}
    return ChangeSize(shapes, {each.name: each.split for each in own if each.split is not None})


def groups_of(name: str, settings: CompressionSettings) -> dict[str, Any]:
    """The settings of the first group that has the layer, by enabled technique that acts on it."""
    found = {}
    for technique, block in techniques(settings.compression_training):
        if block.shared_parameters.enabled:
            group = next((each for each in block.different_groups.values() if has(each.modules, name)), None)
            if group is not None:
                found[technique] = group.params
    excluded = settings.compression_training.sparse_pruning.shared_parameters.excluded_modules
    if "sparse_pruning" in found and has(excluded, name):
        del found["sparse_pruning"]
    return found


def prunings(linear: LinearShape, groups: dict[str, Any], settings: CompressionSettings) -> list[Pruning]:
    """How a layer is pruned, in the order in which that acts."""
    block, by_outputs = settings.compression_training, linear.split == "outputs"
    found = []
    techniques_of: dict[str, Any] = {
        "sparse": block.sparse_pruning.shared_parameters,
        "row": block.row_pruning.shared_parameters,
        "head": block.head_pruning.shared_parameters,
    }
    for what, shared in techniques_of.items():
        technique = f"{what}_pruning"
        if technique not in groups:
            continue
        heads = getattr(shared, "num_heads", None) or 1
        shape, split = {
            "sparse": ((linear.outputs, linear.inputs), 0 if by_outputs else 1),
            "row": ((linear.outputs, 1), 0 if by_outputs else None),
            "head": ((1, heads), None if by_outputs else 1),
        }[what]
        learned = shared.method == "topk"
        name = f"{what}_{'scores' if learned else 'mask'}"
        found.append(Pruning(what, name, shape, split, learned, shared.schedule_offset, groups[technique].dense_ratio))
    return found
