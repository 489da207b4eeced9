"""Epsilons of the norms; each is read by its own norm only."""

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class LayerNormSettings:
    layernorm_epsilon: float = setting(
        1e-5, help="Constant added to the variance inside LayerNorm.", check=v.gt(0), origin="megatron"
    )


@frozen
class RMSNormSettings:
    rms_norm_epsilon: float = setting(
        1e-8, help="Constant added to the root mean square before dividing by it.", check=v.gt(0), origin="gpt-neox"
    )
    rms_norm_epsilon_in: Literal["rms", "mean-square"] = setting(
        "rms",
        help="What the constant is added to: the root, as in GPT-NeoX, or the mean square under it, as in LLaMA.",
    )
    rms_norm_adds_one: bool = setting(
        False, help="Multiply by 1 + weight, with weights that start at 0, as in Gemma, and not by the weight."
    )


@frozen
class ScaleNormSettings:
    scalenorm_epsilon: float = setting(
        1e-8, help="Lower bound of the vector's L2 norm inside ScaleNorm.", check=v.gt(0), origin="gpt-neox"
    )
