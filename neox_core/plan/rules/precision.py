"""Rules of fp16, bf16 and autocast."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.precision import PrecisionSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.sections.zero import ZeroSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import enabled, owns_parameters, rule


@rule("fp16.enabled", "bf16.enabled", "amp.enabled", "torch_autocast.enabled")
def one_precision(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """At most one of fp16, bf16, amp and autocast."""
    precision = config.section(PrecisionSection)
    on = [key for key in ("fp16", "bf16", "amp", "torch_autocast") if enabled(getattr(precision, key))]
    if len(on) > 1:
        yield config.problem(f"enabled together with {on[0]}", f"{on[1]}.enabled", "enable one")


@rule("fp16.enabled", "device")
def fp16_needs_gpu(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """fp16 trains on a GPU only."""
    if enabled(config.section(PrecisionSection).fp16) and shape.device == "cpu":
        hint = "use bf16: {enabled: true}; `neox config check --on 1x8` checks it as if on GPUs"
        yield config.problem("fp16 does not train on a CPU", "fp16.enabled", hint)


@rule("fp16.hysteresis", "fp16.consecutive_hysteresis", "zero_optimization.stage")
def hysteresis_needs_zero(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The engine applies hysteresis only when it shards."""
    fp16 = config.section(PrecisionSection).fp16
    if fp16 is None or not fp16.enabled or config.section(ZeroSection).zero_optimization.stage > 0:
        return
    for key in ("fp16.hysteresis", "fp16.consecutive_hysteresis"):
        if config.is_set(key):
            yield config.problem(
                "DeepSpeed ignores it at ZeRO stage 0", key, "zero_optimization: {stage: 1}, or remove it"
            )


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


@rule("fp16_lm_cross_entropy", "fp16.enabled")
def fp16_loss_needs_fp16(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A loss in fp16 needs a model in fp16."""
    precision = config.section(PrecisionSection)
    if precision.fp16_lm_cross_entropy and not enabled(precision.fp16):
        yield config.problem("needs fp16: {enabled: true}", "fp16-lm-cross-entropy")


@rule("max_skipped_steps", "on_nonfinite_loss", "fp16.enabled")
def steps_that_are_skipped_have_a_bound(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """max-skipped-steps applies only where a step may be skipped: in fp16, or where the config allows it."""
    stops = config.section(TrainingSection).on_nonfinite_loss == "stop"
    if config.is_set("max_skipped_steps") and stops and not enabled(config.section(PrecisionSection).fp16):
        yield config.problem(
            "does nothing: the first gradient that is not finite ends the run",
            "max_skipped_steps",
            "set on-nonfinite-loss: skip to allow skipped steps",
            "note",
        )
