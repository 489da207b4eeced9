"""The planner of the engine, see `contracts.engine.EnginePlanner`: which keys of a config it refuses."""

from collections.abc import Iterator, Sequence
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import Shapes
from neox_core.contracts.engine import Sharding
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule, rules_in
from neox_core.plan.runfile import BatchPlan, PrecisionPlan, RunPlan
from neox_plain.config import batch_rules, checkpoint_rules, precision_rules
from neox_plain.config.gradient_rules import gradients_key, gradients_plan
from neox_plain.config.memory import Memory, expected_memory
from neox_plain.config.sections.precision import PrecisionSection


@rule("engine", "fp16.enabled", "bf16.enabled")
def plain_keeps_fp32_weights(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The engine plain trains weights in fp32; matmuls may be in bf16."""
    dtype = config.section(PrecisionSection).dtype
    if dtype != "fp32":
        yield config.problem(
            f"the engine plain does not train weights in {dtype}",
            f"{dtype}.enabled",
            "use torch_autocast: {enabled: true}, or engine: deepspeed",
        )


@rule("engine", "data_types.grad_accum_dtype")
def plain_adds_up_in_fp32(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The engine plain accumulates gradients in fp32."""
    dtype = config.section(PrecisionSection).data_types.grad_accum_dtype
    if dtype not in (None, "fp32"):
        yield config.problem(
            f"the engine plain does not accumulate gradients in {dtype}", "data_types.grad_accum_dtype", "fp32"
        )


@rule("engine", "pipe_parallel_size")
def plain_has_no_pipeline(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The engine plain has no pipeline."""
    stages = config.section(ParallelismSection).stages
    if stages > 1:
        yield config.problem(
            f"the engine plain has no pipeline, and {stages} stages are asked for",
            "pipe_parallel_size",
            "set it to 1, or use engine: deepspeed",
        )


@rule("engine", "optimizer.type")
def plain_steps_whole_weights(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer of the engine plain works without sharding."""
    (optimizer,) = config.components("optimizer")
    component = optimizer.entry.component
    if 0 not in component.zero_stages:
        yield config.problem(
            f"{component.name} is tested on shards only, and the engine plain has none",
            "optimizer.type",
            "choose another optimizer, or engine: deepspeed",
        )


class PlainPlanner:
    """The planner of the engine `plain`."""

    rules: Sequence[Rule] = (
        *rules_in(precision_rules),
        *rules_in(checkpoint_rules),
        *rules_in(batch_rules),
        plain_keeps_fp32_weights,
        plain_adds_up_in_fp32,
        plain_has_no_pipeline,
        plain_steps_whole_weights,
    )
    recomputes = False
    spreads = True
    optimizer_uses = ("closure", "modes")

    def sharding(self, config: Config) -> Sharding:
        return Sharding(background=checkpoint_rules.in_background(config))

    def precision(self, config: Config) -> PrecisionPlan:
        return precision_rules.precision_plan(config)

    def plan(
        self, config: Config, batch: BatchPlan, precision: PrecisionPlan, *, gradient_clipping: float
    ) -> dict[str, Any]:
        return gradients_plan(config)

    def memory(
        self,
        config: Config,
        plan: RunPlan,
        held: Shapes,
        activations: int,
        state_numbers: tuple[float, float] | None,
    ) -> Memory:
        return expected_memory(plan, self.sharding(config), held, activations, state_numbers)

    def key_of(self, config: Config, path: str) -> str | None:
        return gradients_key(path)


PLANNER = PlainPlanner()
