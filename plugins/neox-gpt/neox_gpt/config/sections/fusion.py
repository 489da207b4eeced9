"""Which implementation computes an op: a kernel of a plugin, or the reference in plain torch."""

from typing import Any

from attrs import Factory, frozen

from neox_core.api import setting

SWITCHES = {
    "scaled_upper_triang_masked_softmax_fusion": "scaled_upper_triang_masked_softmax",
    "scaled_masked_softmax_fusion": "scaled_masked_softmax",
    "bias_gelu_fusion": "bias_gelu",
    "bias_dropout_fusion": "bias_dropout_add",
    "layernorm_fusion": "layer_norm",
    "rmsnorm_fusion": "rms_norm",
    "rope_fusion": "rotary_pair",
}
"""Switch -> the op that it is about."""


def _switch(what: str, origin: str) -> Any:
    said = f"{what}. Unset: on a GPU that its kernel was tested on."
    return setting(None, help=said, changes="speed", origin=origin)


@frozen
class FusionSection:
    """Which code computes an op: true takes a kernel where one can run, else torch's operators, with a note."""

    scaled_upper_triang_masked_softmax_fusion: bool | None = _switch(
        "One kernel for scale, causal mask and softmax", "megatron"
    )
    scaled_masked_softmax_fusion: bool | None = _switch("One kernel for scale, mask and softmax", "megatron")
    bias_gelu_fusion: bool | None = _switch("One kernel for bias and GELU", "megatron")
    bias_dropout_fusion: bool | None = _switch("One kernel for bias, dropout and residual", "megatron")
    layernorm_fusion: bool | None = _switch("A fused LayerNorm", "gpt-neox")
    rmsnorm_fusion: bool | None = _switch("A fused RMSNorm", "gpt-neox")
    rope_fusion: bool | None = _switch("A fused rotary embedding", "gpt-neox")
    kernels: dict[str, str] = setting(
        Factory(dict),
        help="By op: auto, reference or the name of a kernel; `neox kernels list` shows them.",
        changes="speed",
    )
