"""What can be wrong with what is pruned together: blocks of all layers, and layers that shrink with others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from neox_gpt.api import LinearShape, weight_type

from neox_compression.patterns import has
from neox_compression.plan import SNIP
from neox_compression.pruning.pattern import Pattern
from neox_core.api import Problem

if TYPE_CHECKING:
    from neox_compression.config.sections.pruning import HeadPruning, RowPruning, SparsePruning

FOLLOWING = {"attention.output": "attention.qkv", "mlp.up": "mlp.down"}
"""The layer of a block that shrinks with another one."""
OF_SNIP = ("schedule_offset_end", "schedule_offset_stride", "block_pattern", "dense_ratio")
LEAST_DENSE = 0.02


def snip_problems(config: Any, technique: SparsePruning, at: str, layers: tuple[LinearShape, ...]) -> Iterator[Problem]:
    """What contradicts pruning by snip_momentum, and its keys beside another method."""
    shared, inner = technique.shared_parameters, f"{at}.shared_parameters"
    if shared.method != SNIP:
        for key in OF_SNIP:
            if config.is_set(f"{inner}.{key}"):
                yield config.problem("is for method snip_momentum", f"{inner}.{key}", "remove it")
        return
    if technique.different_groups:
        message = "snip_momentum compares the blocks of all layers, and has no groups"
        yield config.problem(message, f"{at}.different_groups", "remove it; name what stays whole in excluded_modules")
    if shared.schedule_offset_end - shared.schedule_offset < shared.schedule_offset_stride:
        message = f"{shared.schedule_offset_end} leaves no step to set weights to zero after schedule_offset"
        least = shared.schedule_offset + shared.schedule_offset_stride
        yield config.problem(message, f"{inner}.schedule_offset_end", f"schedule_offset_end: {least}, or more")
    pattern = Pattern.read(shared.block_pattern)
    least_dense = max(LEAST_DENSE, 1 - pattern.most_zeros)
    if shared.dense_ratio < least_dense:
        message = f"{shared.dense_ratio} is less than block_pattern {shared.block_pattern} leaves, {least_dense:g}"
        yield config.problem(message, f"{inner}.dense_ratio", f"dense_ratio: {least_dense:g}")
    for each in layers:
        if not has(shared.excluded_modules, each.name) and not pattern.fits(each.outputs, each.inputs):
            message = (
                f"the {each.outputs} x {each.inputs} weight of {each.name} cannot be cut into {shared.block_pattern}"
            )
            yield config.problem(message, f"{inner}.block_pattern", "name another pattern, or exclude the layer")
            break
    if config.value("pipe_parallel_size") > 1:
        message = "snip_momentum compares the layers of all pipeline stages, and a rank has those of one"
        yield config.problem(message, f"{inner}.method", "method: topk, or pipe-parallel-size: 1")
    if weight_type(config) == "fp16":
        message = "snip_momentum adds up gradients of several steps, whose scale fp16 changes"
        yield config.problem(message, f"{inner}.method", "train in bf16, or use method: topk")


def related_problems(
    config: Any, technique: HeadPruning | RowPruning, at: str, layers: tuple[LinearShape, ...]
) -> Iterator[Problem]:
    """The layers that shrink are those that follow, in every block, and equally many units stay in each."""
    shrinking, ratios = set(), set()
    for name, group in technique.different_groups.items():
        if group.related_modules is None:
            continue
        key = f"{at}.different_groups.{name}.related_modules"
        if len(group.related_modules) != len(group.modules):
            message = f"has {len(group.related_modules)} lists for the {len(group.modules)} patterns of modules"
            yield config.problem(message, key, "give each of modules a list")
            continue
        for pattern, related in zip(group.modules, group.related_modules, strict=True):
            mine = [each.name for each in layers if has((pattern,), each.name)]
            wrong = next((each for each in mine if _following(each) is None), None)
            if wrong is not None:
                message = f"{wrong} has no layer that shrinks with it, as {' and '.join(FOLLOWING)} have"
                yield config.problem(message, key, "remove it, and an export has zeros")
                continue
            wanted, given = (
                {_following(each) for each in mine},
                {each.name for each in layers if has(related, each.name)},
            )
            if layers and wanted != given:
                end = next(other for ours, other in FOLLOWING.items() if mine and mine[0].endswith(ours))
                yield config.problem("does not name the layers that shrink", key, f"related_modules: [[{end}]]")
        shrinking |= {each.name for each in layers if has(group.modules, each.name)}
        ratios.add(group.params.dense_ratio)
    if not shrinking:
        return
    ends = {end for end in FOLLOWING for each in shrinking if each.endswith(end)}
    left = next((each.name for each in layers if each.name.endswith(tuple(ends)) and each.name not in shrinking), None)
    if left is not None or len(ratios) > 1:
        message = f"{left} does not shrink" if left else "the groups shrink to different sizes"
        yield config.problem(
            f"{message}, and a model has one size for all layers", f"{at}.different_groups", "shrink all layers alike"
        )
    if "attention.output" in ends:
        yield from _shared_heads(config, at)


def _following(name: str) -> str | None:
    for end, other in FOLLOWING.items():
        if name.endswith(f".{end}"):
            return name.removesuffix(end) + other
    return None


def _shared_heads(config: Any, at: str) -> Iterator[Problem]:
    """What belongs to a head alone can be left out with it."""
    for key, alone in (("num_kv_heads", (None, config.value("num_attention_heads"))), ("qk_norm", (None, "head"))):
        if config.value(key) not in alone:
            message = f"heads cannot be left out one by one with {key} {config.value(key)}"
            yield config.problem(message, f"{at}.different_groups", "remove related_modules, and an export has zeros")
    (position,) = config.components("position")
    name = position.entry.component.name
    if name not in ("rotary", "learned", "sinusoidal", "none"):
        message = f"each head has its own place in pos-emb {name}"
        yield config.problem(message, f"{at}.different_groups", "remove related_modules, and an export has zeros")
