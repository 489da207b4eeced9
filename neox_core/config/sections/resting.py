"""Switches of GPT-NeoX and DeepSpeed that hold at their resting value, and that this version has no other value for."""

from typing import Any

from attrs import frozen

from neox_core.config.checks import only
from neox_core.config.setting import setting


def _off(what: str, origin: str) -> Any:
    return setting(False, help=f"{what}; not available yet.", check=only(False, by="neox-kernels"), origin=origin)


@frozen
class RestingSection:
    """Accepted at the value that says what happens anyway; any other value is refused."""

    scaled_upper_triang_masked_softmax_fusion: bool = _off("One kernel for scale, causal mask and softmax", "megatron")
    scaled_masked_softmax_fusion: bool = _off("One kernel for scale, mask and softmax", "megatron")
    bias_gelu_fusion: bool = _off("One kernel for bias and GELU", "megatron")
    bias_dropout_fusion: bool = _off("One kernel for bias, dropout and residual", "megatron")
    layernorm_fusion: bool = _off("A fused LayerNorm", "gpt-neox")
    rope_fusion: bool = _off("A fused rotary embedding", "gpt-neox")
    output_layer_parallelism: str = setting(
        "column",
        help="How the output layer is cut; without tensor parallelism there is one.",
        check=only("column"),
        origin="gpt-neox",
    )
