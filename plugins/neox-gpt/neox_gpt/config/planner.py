"""What a decoder says on the host: see `contracts.ArchitecturePlanner`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.convert import shown
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Named, Shapes, Untold
from neox_core.hooks.registry import Registry
from neox_core.plan.rules.rule import Rule, rules_in
from neox_core.plan.runfile import KernelPlan, RunPlan
from neox_gpt.config.assemble import gpt_plan
from neox_gpt.config.attention_config import layouts_used, mixers_used, mode_of
from neox_gpt.config.feed_forwards import feed_forwards_used
from neox_gpt.config.kernels import plan_kernels
from neox_gpt.config.memory import activation_bytes, on_fullest_rank
from neox_gpt.config.mixers import other_mixers
from neox_gpt.config.plan import GPTPlan
from neox_gpt.config.rules import (
    activation_checkpointing,
    attention,
    feed_forward,
    idle,
    mixer,
    model,
    model_changes,
    parallelism,
)
from neox_gpt.config.sections.model import MEASURE_COMPILE
from neox_gpt.config.size import DecoderSize, model_size


class GPTPlanner:
    """The planner of the decoder."""

    plan_class: type[GPTPlan] = GPTPlan
    rules: Sequence[Rule] = tuple(
        each
        for area in (model, attention, mixer, feed_forward, model_changes, activation_checkpointing, parallelism, idle)
        for each in rules_in(area)
    )
    picture = "neox_gpt.attention.draw_layouts"
    shares_output_layer = True

    def components(self, kind: str, fields: Mapping[str, Any], registry: Registry) -> Sequence[Named] | None:
        """The mixers and feed-forwards that some layer has, the sparse layouts, which three keys name together, and the
        callback of `compile: auto` beside those of the config.
        """
        if kind == "callback" and fields.get("compile") == "auto":
            names = [each for each in fields.get("callbacks", ()) if each != MEASURE_COMPILE]
            return *(Named(each, "callbacks") for each in names), Named(MEASURE_COMPILE, "compile")
        if kind == "feed forward":
            written = fields.get("mlp_type")
            return () if written is None else tuple(Named(each, "mlp_type") for each in feed_forwards_used(written))
        if kind not in ("mixer", "sparse layout"):
            return None
        sparsity, block, pattern = (fields.get(key) for key in ("sparsity", "sparse_attention", "attention_config"))
        others = other_mixers(pattern, registry)
        if kind == "mixer":
            return tuple(Named(each, "attention_config") for each in mixers_used(pattern, others))
        if sparsity is None or block is None:  # what is wrong with them is said
            return ()
        mode = mode_of(block)
        if not isinstance(mode, str):
            raise MisfitError(f"must be text, not {shown(mode)}", "sparse_attention.mode")
        used = layouts_used(sparsity, mode, pattern, others)
        if block and not used:  # that it does nothing is a rule's to say; what is wrong within it is said here
            return (Named(mode, "sparse_attention.mode", used=False),)
        return tuple(Named(each, "sparse_attention.mode" if each == mode else "attention_config") for each in used)

    def plan(self, config: Config) -> GPTPlan:
        return gpt_plan(config)

    def kernels(self, config: Config, registry: Registry, device: str) -> tuple[tuple[KernelPlan, ...], list[Problem]]:
        return plan_kernels(config, registry, device)

    def size(self, config: Config, plan: Any) -> ModelSize | Untold:
        return model_size(config, plan)

    def on_fullest_rank(self, plan: RunPlan, size: ModelSize) -> Shapes:
        return on_fullest_rank(plan, cast("GPTPlan", plan.model), cast("DecoderSize", size))

    def activation_bytes(self, plan: RunPlan, size: ModelSize) -> int:
        return activation_bytes(plan, cast("GPTPlan", plan.model), cast("DecoderSize", size))


PLANNER = GPTPlanner()
