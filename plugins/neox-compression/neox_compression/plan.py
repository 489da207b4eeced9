"""Which group a layer is in, and what a technique adds to it: asked on the host before a run starts, and in ranks."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from neox_gpt.api import ChangeSize, LinearShape

from neox_compression.patterns import has
from neox_compression.settings import CompressionSettings, techniques

SNIP = "snip_momentum"
SNIP_NAMES = ("snip_mask", "snip_scores", "snip_seen")


@frozen
class Pruning:
    """One way in which a layer is pruned.

    name, shape: of the parameter with scores or a mask, of the whole layer. split: along which dimension ranks have
    parts of it; None: each has all. offset: the step from which it acts. ratio: the share that stays. shrinks: whether
    an export leaves out what is zero.
    """

    what: str
    name: str
    shape: tuple[int, int]
    split: int | None
    learned: bool
    offset: int
    ratio: float
    shrinks: bool = False


def added_size(linear: LinearShape, settings: CompressionSettings) -> ChangeSize | None:
    """The parameters that a layer has for its techniques; None for a layer without one."""
    groups = groups_of(linear.name, settings)
    if not groups:
        return ChangeSize() if settings.compression_training.layer_reduction.enabled else None
    shapes: dict[str, tuple[int, ...]] = {}
    activations = settings.compression_training.activation_quantization.shared_parameters
    if "activation_quantization" in groups and activations.range_calibration == "static":
        shapes |= {"range": (2,), "seen": (2,)}
    if "channel_pruning" in groups:
        return ChangeSize()
    own = prunings(linear, groups, settings)
    shapes |= {each.name: each.shape for each in own}
    split = {each.name: each.split for each in own if each.split is not None}
    if SNIP in groups:
        shapes |= dict.fromkeys(SNIP_NAMES, (linear.outputs, linear.inputs))
        split |= dict.fromkeys(SNIP_NAMES, 0 if linear.split == "outputs" else 1)
    kept = next((each.ratio for each in own if each.shrinks), None)
    return ChangeSize(shapes, split, "activation_quantization" not in groups, kept)


def groups_of(name: str, settings: CompressionSettings) -> dict[str, Any]:
    """The first group that has the layer, by enabled technique that acts on it; under SNIP what all layers share."""
    found = {}
    for technique, block in techniques(settings.compression_training):
        if block.shared_parameters.enabled:
            group = next((each for each in block.different_groups.values() if has(each.modules, name)), None)
            if group is not None:
                found[technique] = group
    sparse = settings.compression_training.sparse_pruning.shared_parameters
    if sparse.enabled and sparse.method == SNIP:
        found.pop("sparse_pruning", None)
        found[SNIP] = sparse
    for each in ("sparse_pruning", SNIP):
        if each in found and has(sparse.excluded_modules, name):
            del found[each]
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
        group = groups[technique]
        shrinks = getattr(group, "related_modules", None) is not None
        found.append(
            Pruning(what, name, shape, split, learned, shared.schedule_offset, group.params.dense_ratio, shrinks)
        )
    return found
