"""Rules of the blocks of profiles, which need `enabled`, and of deepspeed_extra_args, which holds no key of neox."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from neox_plain.api import left_off

from neox_core.api import Problem
from neox_core.config.schema.convert import Field, block_of, by_key
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.sections.engine import EngineSection

EXTRA = "deepspeed_extra_args"
ENGINE_KEYS = (
    "compile",
    "datastates_ckpt",
    "disable_python_gc",
    "expert_parallel",
    "gradient_allreduce_op",
    "hybrid_engine",
    "log_level",
    "managed_gradient_accumulation",
    "memory_breakdown",
    "seq_parallel_communication_data_type",
    "tensor_parallel",
    "timers",
    "use_data_before_expert_parallelism",
    "vocabulary_size",
    "weight_quantization",
)
"""Top-level keys that DeepSpeed 0.19.8 reads and neox does not have; DeepSpeed silently ignores any other."""


@rule("flops_profiler.enabled", "comms_logger.enabled")
def profiles_switched_on(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A block of a profile does nothing until it is enabled."""
    yield from left_off(config, ("flops_profiler", "comms_logger"))


@rule(EXTRA)
def extra_args_are_the_engines_own(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """deepspeed_extra_args holds only keys of DeepSpeed that neox does not have."""
    extra = config.section(EngineSection).deepspeed_extra_args
    ours = {key: field for section in config.sections for key, field in by_key(section).items()}
    for key, value in extra.items():
        path = f"{EXTRA}.{key}"
        if key in ours:
            yield from _contradictions(config, ours[key], value, path)
        elif key not in ENGINE_KEYS:
            near = get_close_matches(key, ENGINE_KEYS, 1)
            yield config.problem(
                "is not a key that DeepSpeed 0.19.8 uses in a run of neox",
                path,
                f"did you mean {near[0]}?" if near else "remove it",
            )


def _contradictions(config: Config, field: Field, value: Any, path: str) -> Iterator[Problem]:
    """A block that neox has may hold further keys of the engine here, but no key that neox has."""
    block = block_of(field.type)
    if block is None or not isinstance(value, Mapping):
        name = path.removeprefix(f"{EXTRA}.")
        yield config.problem("is a key of neox", path, f"set {name} itself, outside of {EXTRA}")
        return
    inner = by_key(block)
    for key in value.keys() & inner.keys():
        yield from _contradictions(config, inner[key], value[key], f"{path}.{key}")
