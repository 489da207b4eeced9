"""Keys of the decoder that do nothing in a run, because of other keys."""

from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import engine_planner
from neox_core.plan.rules.idle import Idle, idle_rule
from neox_gpt.config.sections.model import ModelSection

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


keys_of_the_decoder_that_do_nothing = idle_rule(
    (Idle(("init_method_std",), _no_std), Idle(("attention_softmax_in_fp32",), _fp32))
)
