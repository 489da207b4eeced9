"""Rules of fp16, bf16 and autocast."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.sections.precision import PrecisionSection
from neox_core.config.sections.zero import ZeroSection
from neox_core.config.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, enabled


def one_precision(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    precision = config.section(PrecisionSection)
    on = [key for key in ("fp16", "bf16", "torch_autocast") if enabled(getattr(precision, key))]
    if len(on) > 1:
        yield config.problem(f"enabled together with {on[0]}", on[1], "enable one")


def fp16_needs_gpu(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    if enabled(config.section(PrecisionSection).fp16) and shape.device == "cpu":
        yield config.problem("fp16 does not train on a CPU", "fp16.enabled", "bf16: {enabled: true} does")


def hysteresis_needs_zero(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    fp16 = config.section(PrecisionSection).fp16
    if fp16 is None or not fp16.enabled or config.section(ZeroSection).zero_optimization.stage > 0:
        return
    for key in ("fp16.hysteresis", "fp16.consecutive_hysteresis"):
        if config.is_set(key):
            yield config.problem(
                "DeepSpeed ignores it at ZeRO stage 0", key, "zero_optimization: {stage: 1}, or remove it"
            )


def fp16_loss_needs_fp16(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    precision = config.section(PrecisionSection)
    if precision.fp16_lm_cross_entropy and not enabled(precision.fp16):
        yield config.problem("needs fp16: {enabled: true}", "fp16-lm-cross-entropy")


RULES: tuple[Rule, ...] = (
    one_precision,
    fp16_needs_gpu,
    hysteresis_needs_zero,
    fp16_loss_needs_fp16,
)
