"""Offers a kernel for each op. Triton is imported when one is loaded."""

from neox_core.api import Component, hookimpl

KERNELS = {
    "rms_norm": "RMSNorm, with the residual added before it",
    "layer_norm": "LayerNorm, with the residual added before it",
    "scale_norm": "ScaleNorm, with the residual added before it",
    "rotary": "Rotary embedding of queries or keys",
    "geglu": "value * GELU(gate)",
    "swiglu": "value * SiLU(gate)",
    "bias_gelu": "GELU of a sum with a bias, exact or by tanh",
    "bias_dropout_add": "Bias, dropout by hash and residual",
    "scaled_upper_triang_masked_softmax": "Scale, causal mask and softmax",
    "scaled_masked_softmax": "Scale, any mask and softmax",
    "block_sparse_attention": "Attention to the blocks that a layout names",
    "sm3_step": "A step of SM3 for a matrix",
    "cross_entropy": "Loss and gradient from a few rows of logits at a time",
}


@hookimpl
def neox_kernels() -> list[Component]:
    return [
        Component(f"{op}.triton", f"neox_triton.{op}:KERNEL", summary=summary, needs=("triton",))
        for op, summary in KERNELS.items()
    ]
