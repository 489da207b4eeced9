"""Rules of precision beside sharding."""

from collections.abc import Iterator

from neox_plain.api import PrecisionSection, enabled

from neox_core.api import Problem
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.owners import owns_parameters
from neox_deepspeed.config.sections.zero import ZeroSection


@rule("fp16.hysteresis", "fp16.consecutive_hysteresis", "zero_optimization.stage")
def hysteresis_needs_zero(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The engine applies hysteresis only when it shards."""
    fp16 = config.section(PrecisionSection).fp16
    if fp16 is None or not fp16.enabled or config.section(ZeroSection).zero_optimization.stage > 0:
        return
    for key in ("fp16.hysteresis", "fp16.consecutive_hysteresis"):
        if config.is_set(key):
            said = "does nothing: at ZeRO stage 0 DeepSpeed lowers the loss scale at every overflow"
            yield config.problem(said, key, "zero_optimization: {stage: 1}", "note")


@rule("amp.enabled", "zero_optimization.stage")
def amp_without_zero(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The block amp does not work with a sharded optimizer."""
    stage = config.section(ZeroSection).zero_optimization.stage
    if enabled(config.section(PrecisionSection).amp) and stage > 0:
        yield config.problem(
            f"does not work at ZeRO stage {stage}", "amp.enabled", "use torch_autocast: {enabled: true}"
        )


@rule("data_types.grad_accum_dtype", "zero_optimization.stage", "optimizer.type", "bf16.enabled", "fp16.enabled")
def gradients_add_up_in_a_known_type(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Gradients are accumulated in the type of the model, or, where DeepSpeed shards, in fp32."""
    precision, stage = config.section(PrecisionSection), config.section(ZeroSection).zero_optimization.stage
    dtype = precision.data_types.grad_accum_dtype
    sharded = stage > 0 and not owns_parameters(config)
    allowed = tuple(dict.fromkeys((precision.dtype, "fp32"))) if sharded else (precision.dtype,)
    if dtype is not None and dtype not in allowed:
        yield config.problem(
            f"{dtype} does not go with a model in {precision.dtype} at ZeRO stage {stage}",
            "data_types.grad_accum_dtype",
            " or ".join(allowed),
        )
