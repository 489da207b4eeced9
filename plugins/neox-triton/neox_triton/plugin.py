"""Offers a kernel for each op. Triton is imported when one is loaded."""

from neox_core.api import Component, hookimpl

KERNELS = {
    "rms_norm": "RMSNorm, with the residual added before it",
    "layer_norm": "LayerNorm, with the residual added before it",
    "scale_norm": "ScaleNorm, with the residual added before it",
    "rotary_pair": "Rotary embedding of queries and keys",
    "geglu": "value * GELU(gate)",
    "swiglu": "value * SiLU(gate)",
    "bias_gelu": "GELU of a sum with a bias, exact or by tanh",
    "bias_dropout_add": "Bias, dropout by hash and residual",
    "scaled_upper_triang_masked_softmax": "Scale, causal mask and softmax",
    "scaled_masked_softmax": "Scale, any mask and softmax",
    "block_sparse_attention": "Attention to the blocks that a layout names",
    "adam_step": "A step of Adam, with either form of weight decay",
    "sm3_step": "A step of SM3 for a matrix",
    "onebit_compress": "Blocks of numbers to signs and a size",
    "onebit_decompress": "Signs and a size to blocks of numbers",
    "cross_entropy": "Loss and gradient from a few rows of logits at a time",
}

SHARED = {
    "geglu": "gated:GEGLU",
    "swiglu": "gated:SWIGLU",
    "onebit_compress": "onebit:COMPRESS",
    "onebit_decompress": "onebit:DECOMPRESS",
}
"""Kernels whose module has others beside them."""


@hookimpl
def neox_kernels() -> list[Component]:
    return [
        Component(f"{op}.triton", target_of(op), summary=summary, needs=("triton",)) for op, summary in KERNELS.items()
    ]


def target_of(op: str) -> str:
    """Where the kernel of an op is."""
    return f"neox_triton.{SHARED.get(op, f'{op}:KERNEL')}"
