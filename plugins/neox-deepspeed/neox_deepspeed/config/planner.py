"""The planner of DeepSpeed: see `contracts.EnginePlanner`."""

from collections.abc import Mapping, Sequence
from typing import Any

from neox_plain.api import (
    batch_rules,
    checkpoint_rules,
    expected_memory,
    gradients_key,
    gradients_plan,
    precision_rules,
)

from neox_core.config.schema.convert import Field, block_of, by_key
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import Shapes
from neox_core.contracts.engine import Memory, Sharding
from neox_core.plan.rules.rule import Rule, rules_in
from neox_core.plan.runfile import BatchPlan, PrecisionPlan, RunPlan
from neox_deepspeed.config.json import engine_json
from neox_deepspeed.config.json.blocks import engine_blocks
from neox_deepspeed.config.memory import beside
from neox_deepspeed.config.owners import owns_parameters
from neox_deepspeed.config.rules import engine, idle, offload, optimizer, parallelism, precision, profiling, zero
from neox_deepspeed.config.sections.communication import CommunicationSection
from neox_deepspeed.config.sections.zero import ZeroSection

ELSEWHERE = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_optimization.stage",
    "zero_optimization.load_from_fp32_weights",
    "fp16.enabled",
    "bf16.enabled",
}
"""What other fields of a plan say too."""


class DeepSpeedPlanner:
    """The planner of DeepSpeed."""

    rules: Sequence[Rule] = tuple(
        each
        for area in (
            precision_rules,
            checkpoint_rules,
            batch_rules,
            parallelism,
            optimizer,
            precision,
            zero,
            offload,
            engine,
            profiling,
            idle,
        )
        for each in rules_in(area)
    )
    recomputes = True

    def sharding(self, config: Config) -> Sharding:
        zero = config.section(ZeroSection).zero_optimization
        return Sharding(
            stage=zero.stage,
            owns_parameters=owns_parameters(config),
            offload_optimizer=zero.updates_on_the_host,
            offload_parameters=zero.offload_param is not None and zero.offload_param.device != "none",
            whole_weights=zero.stage3_gather_16bit_weights_on_model_save,
            load_masters=zero.load_from_fp32_weights,
            sparse_gradients=config.section(CommunicationSection).sparse_gradients,
            background=checkpoint_rules.in_background(config),
        )

    def precision(self, config: Config) -> PrecisionPlan:
        return precision_rules.precision_plan(config)

    def plan(
        self, config: Config, batch: BatchPlan, precision: PrecisionPlan, *, gradient_clipping: float
    ) -> dict[str, Any]:
        engine = engine_json(batch, precision, engine_blocks(config), gradient_clipping=gradient_clipping)
        return {**engine, **gradients_plan(config)}

    def memory(
        self,
        config: Config,
        plan: RunPlan,
        held: Shapes,
        activations: int,
        state_numbers: tuple[float, float] | None,
    ) -> Memory:
        extra = beside(plan, config.section(ZeroSection).zero_optimization, held)
        return expected_memory(plan, self.sharding(config), held, activations, state_numbers, extra)

    def key_of(self, config: Config, path: str) -> str | None:
        if path in ELSEWHERE:
            return None
        if (key := gradients_key(path)) is not None:
            return key
        return path if _is_key(config, path) else "deepspeed_extra_args"


def _is_key(config: Config, path: str) -> bool:
    """Whether a config has a key of this path, outside of deepspeed_extra_args."""
    head, *inner = path.split(".")
    known: Mapping[str, Field] = {key: field for section in config.sections for key, field in by_key(section).items()}
    for name in inner:
        known, head = by_key(block_of(known[head].type)) if head in known else {}, name
    return head in known


PLANNER = DeepSpeedPlanner()
