"""Rules of fp16, bf16 and autocast, and their part of the plan, for every engine that has their keys."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.idle import Idle, idle_rule
from neox_core.plan.rules.rule import rule
from neox_core.plan.runfile import PrecisionPlan
from neox_plain.config.sections.precision import PrecisionSection


def precision_plan(config: Config) -> PrecisionPlan:
    """What the ranks compute in."""
    section = config.section(PrecisionSection)
    return PrecisionPlan(section.dtype, section.autocast, section.fp16_lm_cross_entropy)


BLOCKS = ("fp16", "bf16", "amp", "torch_autocast")


def enabled(block: Any) -> bool:
    """Whether a block is written and switched on."""
    return block is not None and bool(block.enabled)


def left_off(config: Config, keys: Iterable[str]) -> Iterator[Problem]:
    """Warnings for blocks, by their keys, that are written without the `enabled` that switches them on."""
    for key in keys:
        if config.loaded.values.get(key) is not None and not config.is_set(f"{key}.enabled"):
            written = [path for path in config.loaded.places if path.startswith(f"{key}.")]
            hint = f"{key}: {{enabled: true}}, or remove it"
            yield config.problem(f"does nothing without {key}.enabled", min(written, default=key), hint, "warning")


@rule(*(f"{key}.enabled" for key in BLOCKS))
def blocks_switched_on(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A block with `enabled` does nothing until it is enabled."""
    yield from left_off(config, BLOCKS)


@rule(*(f"{key}.enabled" for key in BLOCKS))
def one_precision(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """At most one of fp16, bf16, amp and autocast."""
    precision = config.section(PrecisionSection)
    on = [key for key in BLOCKS if enabled(getattr(precision, key))]
    if len(on) > 1:
        yield config.problem(f"enabled together with {on[0]}", f"{on[1]}.enabled", "enable one")


@rule("fp16.enabled", "device")
def fp16_needs_gpu(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """fp16 trains on a GPU only."""
    if enabled(config.section(PrecisionSection).fp16) and shape.device == "cpu":
        hint = "use bf16: {enabled: true}; `neox config check --on 1x8` checks it as if on GPUs"
        yield config.problem("fp16 does not train on a CPU", "fp16.enabled", hint)


CPUINFO = Path("/proc/cpuinfo")


@rule("bf16.enabled", "torch_autocast.enabled", "device")
def bf16_has_instructions(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """On an x86 processor without AVX-512, torch multiplies bf16 one number at a time."""
    block = "bf16" if enabled(config.section(PrecisionSection).bf16) else "torch_autocast"
    plan, here = precision_plan(config), {host.name for host in shape.hosts} == {"localhost"}
    if shape.device == "cpu" and here and "bf16" in (plan.dtype, plan.autocast) and _multiplies_bf16_singly():
        yield config.problem(
            "this processor has no instructions for bf16: a step takes about 50 times as long as in fp32",
            f"{block}.enabled",
            "train in fp32 here, or on a GPU or a processor with AVX-512",
            "warning",
        )


def _multiplies_bf16_singly() -> bool:
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.is_file() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), None)
    return flags is not None and not {"avx512bw", "avx_ne_convert"} & {*flags}


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


def _static_scale(config: Config, shape: ClusterShape) -> str:
    fp16 = config.section(PrecisionSection).fp16
    fixed = fp16 is not None and fp16.enabled and fp16.loss_scale > 0
    return f"loss_scale is {fp16.loss_scale:g}, not dynamic" if fixed and fp16 is not None else ""


_DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale")
keys_of_a_scale_that_do_nothing = idle_rule((Idle(tuple(f"fp16.{key}" for key in _DYNAMIC), _static_scale),))
