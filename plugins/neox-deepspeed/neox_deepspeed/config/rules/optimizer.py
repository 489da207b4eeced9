"""Rules of an optimizer whose state is sharded."""

from collections.abc import Iterator

from neox_plain.api import PrecisionSection

from neox_core.api import Problem
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.owners import owns_parameters
from neox_deepspeed.config.sections.zero import ZeroSection


@rule("optimizer.type", "zero_optimization.stage", "zero_allow_untested_optimizer")
def sharded_optimizer_tested(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer is sharded only where its author has tested it, or on request."""
    zero = config.section(ZeroSection)
    stage, allowed = zero.zero_optimization.stage, zero.zero_allow_untested_optimizer
    (optimizer,) = config.components("optimizer")
    component = optimizer.entry.component
    if stage in component.zero_stages or allowed:
        return
    tested = " or ".join(map(str, component.zero_stages))
    said = f"{component.name} is tested at ZeRO stage {tested} only, not at {stage}"
    if component.whole_parameters and stage > 1:
        said += ", where it gets flat slices instead of the whole parameters that it needs"
    hint = f"use stage {tested}; zero-allow-untested-optimizer: true runs it anyway"
    yield config.problem(said, "zero_optimization.stage", hint)


@rule(
    "optimizer.type",
    "zero_optimization.stage",
    "zero_optimization.allgather_partitions",
    "zero_optimization.offload_optimizer",
    "fp16.enabled",
)
def owners_step_what_they_own(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Ranks that own whole parameters step them in place, in fp32 or with bf16 weights, without fp16 or offload."""
    if not owns_parameters(config):
        return
    (optimizer,) = config.components("optimizer")
    component, zero = optimizer.entry.component, config.section(ZeroSection).zero_optimization
    value, key, owned, instead = "false", "zero_optimization.allgather_partitions", "whole parameters", "remove it"
    if component.whole_parameters:
        value, key, owned = "1", "zero_optimization.stage", f"whole parameters of {component.name}"
        instead = "use stage: 0"
    if zero.offload_optimizer is not None and zero.offload_optimizer.device != "none":
        yield config.problem(
            f"is for slices, and at stage 1 ranks own {owned}",
            "zero_optimization.offload_optimizer",
            "remove it",
        )
    if config.section(PrecisionSection).dtype == "fp16":
        yield config.problem(
            f"{value} puts {owned} on each rank, and fp16's loss scale needs DeepSpeed's copies of all parameters",
            key,
            f"{instead}, or bf16: {{enabled: true}}",
        )
