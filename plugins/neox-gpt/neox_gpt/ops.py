"""The ops of a decoder that a kernel may compute: each has one reference in plain torch."""

SOFTMAXES = ("scaled_upper_triang_masked_softmax", "scaled_masked_softmax")
BLOCK_SPARSE = "block_sparse_attention"
OPS = (
    ("bias_dropout_add", "neox_gpt.dropout:bias_dropout_add"),
    (SOFTMAXES[0], "neox_gpt.attention.softmax:causal_softmax"),
    (SOFTMAXES[1], "neox_gpt.attention.softmax:masked_softmax"),
    ("cross_entropy", "neox_gpt.loss:by_torch"),
    (BLOCK_SPARSE, "neox_gpt.attention.blocked:blocked_attention"),
)
"""(name, import path of the reference)."""
COMPILED = ("cross_entropy",)
"""Those which a model computes by compiled code of its own on a CPU, unless the reference is asked for."""
