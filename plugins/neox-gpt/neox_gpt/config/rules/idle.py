"""Keys of the decoder that do nothing in a run, because of other keys."""

from collections.abc import Callable

from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import engine_planner
from neox_core.plan.rules.idle import Idle, idle_rule
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.config.size import mixer_sizes
from neox_gpt.contracts import MixerSize

DRAWN_BY_STD = ("normal", "scaled_normal", "single_residual_scaled_normal")
"""The initialisations that read `init-method-std`."""


def _no_std(config: Config, shape: ClusterShape) -> str:
    model = config.section(ModelSection)
    methods = (model.init_method, model.output_layer_init_method)
    return (
        ""
        if set(methods) & set(DRAWN_BY_STD)
        else f"{' and '.join(dict.fromkeys(methods))} set their own standard deviations"
    )


def _fp32(config: Config, shape: ClusterShape) -> str:
    precision = engine_planner(config).precision(config)
    return "the whole model is in fp32" if precision.dtype == "fp32" and precision.autocast is None else ""


def _unused(field: str) -> Callable[[Config, ClusterShape], str]:
    def why(config: Config, shape: ClusterShape) -> str:
        used = any(isinstance(each, MixerSize) and field in each.uses for each in mixer_sizes(config))
        return "" if used else "no layer has a mixer that uses it"

    return why


OF_MIXERS = {
    "attention_dropout": "dropout",
    "attention_softmax_in_fp32": "softmax_in_fp32",
    "apply_query_key_layer_scaling": "query_key_layer_scaling",
    "head_dim": "head_dim",
    "qk_norm": "qk_norm",
    "use_qk_layernorm": "qk_norm",
    "num_kv_heads": "num_kv_heads",
    "use_bias_in_attn_linear": "bias",
    "use_bias_in_attn_output": "output_bias",
    "attention_multiplier": "multiplier",
    "attention_softcap": "softcap",
}
"""The field of `MixerShape` that a key sets."""

keys_of_the_decoder_that_do_nothing = idle_rule(
    (
        Idle(("init_method_std",), _no_std),
        Idle(("attention_softmax_in_fp32",), _fp32),
        *(Idle((key,), _unused(field)) for key, field in OF_MIXERS.items()),
    )
)
