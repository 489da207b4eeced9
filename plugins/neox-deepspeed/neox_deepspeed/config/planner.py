"""What DeepSpeed says on the host: see `contracts.EnginePlanner`."""

from collections.abc import Sequence
from typing import Any

from neox_core.config.schema.structure import Config
from neox_core.contracts.engine import Sharding
from neox_core.plan.rules.rule import Rule, rules_in
from neox_core.plan.runfile import BatchPlan, PrecisionPlan
from neox_deepspeed.config.json import engine_json
from neox_deepspeed.config.json.blocks import engine_blocks
from neox_deepspeed.config.owners import owns_parameters
from neox_deepspeed.config.rules import engine, idle, offload, optimizer, parallelism, precision, profiling, zero
from neox_deepspeed.config.sections.communication import CommunicationSection
from neox_deepspeed.config.sections.zero import ZeroSection


class DeepSpeedPlanner:
    """The planner of DeepSpeed."""

    rules: Sequence[Rule] = tuple(
        each
        for area in (parallelism, optimizer, precision, zero, offload, engine, profiling, idle)
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
        )

    def plan(
        self, config: Config, batch: BatchPlan, precision: PrecisionPlan, *, gradient_clipping: float
    ) -> dict[str, Any]:
        return engine_json(batch, precision, engine_blocks(config), gradient_clipping=gradient_clipping)


PLANNER = DeepSpeedPlanner()
