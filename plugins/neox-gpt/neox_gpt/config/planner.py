"""What a decoder says on the host: see `contracts.ArchitecturePlanner`."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from neox_core.config.problem import MisfitError
from neox_core.config.schema.convert import shown
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Named, Shapes, Untold
from neox_core.hooks.registry import Registry
from neox_core.plan.planners import sharding
from neox_core.plan.rules.rule import Rule, rules_in
from neox_core.plan.runfile import RunPlan
from neox_gpt.config.assemble import gpt_plan
from neox_gpt.config.attention_config import layouts_used, mixers_used, mode_of
from neox_gpt.config.feed_forwards import feed_forwards_used
from neox_gpt.config.memory import activation_bytes, on_fullest_rank
from neox_gpt.config.mixers import has_softmax_attention, other_mixers
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
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.fusion import SWITCHES
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.config.size import DecoderSize, model_size
from neox_gpt.ops import BLOCK_SPARSE, OPS, SOFTMAXES

NEED_WHOLE_BIAS = ("bias_gelu", "bias_dropout_add")
_NO_SCORES = "uses attention that stores no scores, or else a kernel where one can run"


class GPTPlanner:
    """The planner of the decoder."""

    plan_class = GPTPlan
    rules: Sequence[Rule] = tuple(
        each
        for area in (model, attention, mixer, feed_forward, model_changes, activation_checkpointing, parallelism, idle)
        for each in rules_in(area)
    )
    switches: Mapping[str, str] = MappingProxyType(SWITCHES)
    switch_notes: Mapping[str, str] = MappingProxyType(dict.fromkeys(SOFTMAXES, _NO_SCORES))
    picture = "neox_gpt.attention.draw_layouts"

    def components(self, kind: str, fields: Mapping[str, Any], registry: Registry) -> Sequence[Named] | None:
        """The mixers and feed-forwards that some layer has, and the sparse layouts, which three keys name together."""
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

    def ops(self, config: Config) -> Iterator[str]:
        return (op for op, _ in OPS if op != BLOCK_SPARSE or config.components("sparse layout"))

    def why_no_kernel(self, config: Config, op: str, asked: str) -> tuple[str, str] | None:
        section, parallel = config.section(ModelSection), config.section(ParallelismSection)
        if section.compile:
            return f"the kernels of {op} are not compiled along with a layer", "remove it, or compile"
        if op in NEED_WHOLE_BIAS and sharding(config).stage == 3:
            return f"at ZeRO 3 a bias is sharded where {op} needs it", "remove it, or use a lower stage"
        if op == "bias_gelu" and not section.use_bias_in_mlp:
            return "the MLP has no bias", "remove it, or use-bias-in-mlp: false"
        if op in (*SOFTMAXES, BLOCK_SPARSE) and not has_softmax_attention(config):
            return "no layer has softmax attention", "remove it"
        if op == "cross_entropy" and parallel.ranks_of_a_copy > 1:
            return "the kernels of cross_entropy need one rank to hold the vocabulary and all layers", "remove it"
        if op in SOFTMAXES:
            if asked == "auto":
                return "attention that stores no scores is faster", ""
            if config.section(AttentionSection).sparsity == "all":
                return "every layer has block-sparse attention, which has no whole rows of scores", "remove it"
            if op == SOFTMAXES[0] and section.reset_attention_mask:
                return "the mask is not purely causal", "use scaled-masked-softmax-fusion, which takes any mask"
        return None

    def size(self, config: Config, plan: Any) -> ModelSize | Untold:
        return model_size(config, plan)

    def on_fullest_rank(self, plan: RunPlan, size: ModelSize) -> Shapes:
        return on_fullest_rank(plan, cast("GPTPlan", plan.model), cast("DecoderSize", size))

    def activation_bytes(self, plan: RunPlan, size: ModelSize) -> int:
        return activation_bytes(plan, cast("GPTPlan", plan.model), cast("DecoderSize", size))


PLANNER = GPTPlanner()
