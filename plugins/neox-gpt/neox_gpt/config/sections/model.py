"""The decoder: its shape, its components, its initial weights."""

from typing import Any, Literal

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above, between, distinct, probability
from neox_gpt.config.feed_forwards import pattern as feed_forwards

Init = Literal[
    "normal",
    "scaled_normal",
    "single_residual_scaled_normal",
    "small_init",
    "wang_init",
    "xavier_uniform",
    "xavier_normal",
    "orthogonal",
    "scaled_orthogonal",
]
MEASURE_COMPILE = "measure_compile"
"""The callback of `compile: auto`."""
TIMED_INTERVALS = 3
"""Log intervals that it times uncompiled, and as many compiled. One before each warms up, or compiles."""


@frozen
class ModelSection:
    """Shape and components of the model: `neox plugins list` shows what is installed."""

    num_layers: int = setting(help="Number of transformer blocks.", check=between(1, 100_000), origin="megatron")
    hidden_size: int = setting(help="Width of the residual stream.", unit="elements", check=above(0), origin="megatron")
    num_attention_heads: int = setting(help="Attention heads of each block.", check=above(0), origin="megatron")
    num_kv_heads: int | None = setting(
        None,
        help="Heads of keys and values, each for several heads of queries. Default: num-attention-heads.",
        check=above(0),
        origin="gpt-neox",
    )
    head_dim: int | None = setting(
        None,
        help="Width of an attention head. Default: hidden-size / num-attention-heads.",
        unit="elements",
        check=above(0),
    )
    num_unique_layers: int | None = setting(
        None,
        help="Blocks that own weights; the other layers reuse them. Default: num-layers.",
        check=above(0),
        origin="megatron",
    )
    param_sharing_style: Literal["grouped", "spaced"] = setting(
        "grouped",
        help="Order in which layers use the unique blocks: grouped 1 2 1 2, spaced 1 1 2 2.",
        origin="megatron",
    )
    max_position_embeddings: int = setting(
        help="Longest sequence the model can take.", unit="tokens", check=above(0), origin="megatron"
    )
    intermediate_size: int | None = setting(
        None,
        help="Width inside the MLP, after the gate where the activation has one; at the same width, a gated MLP "
        "has 1.5 times the weights. Default: 4 x hidden-size.",
        unit="elements",
        check=above(0),
        origin="gpt-neox",
    )
    norm: str = setting("layernorm", help="Norm before attention, before the MLP and at the end.", origin="gpt-neox")
    norm_place: Literal["before", "after", "both"] = setting(
        "before",
        help="Where the norms of attention and MLP are: before each; after each, before its result is added to the "
        "residual, as in OLMo 2; or both, as in Gemma 2.",
    )
    pos_emb: str = setting("learned", help="How the positions of the tokens enter the model.", origin="gpt-neox")
    activation: str = setting("gelu", help="Nonlinearity of the MLP.", origin="gpt-neox")
    mlp_type: str | tuple[Any, ...] = setting(
        "regular",
        help="Feed-forward of the blocks: one name, or a list as attention-config has it, such as "
        "[[[regular, regular], 6]], for the feed-forward of each layer. regular is the MLP with the chosen activation.",
        check=feed_forwards,
        origin="gpt-neox",
    )
    model_changes: tuple[str, ...] = setting(
        (),
        help="Changes of the model's layers, by name, in the order in which they act. Those that `enabled` of their "
        "own settings chooses come after them, by name.",
        check=distinct,
    )
    no_weight_tying: bool = setting(
        False, help="Use a separate matrix for the output projection instead of the input embedding.", origin="gpt-neox"
    )
    use_bias_in_head: bool = setting(False, help="A bias in the output projection, as in GPT-J.")
    embedding_multiplier: float | None = setting(
        None,
        help="What the rows of the embedding are multiplied by, in the precision of the weights; Gemma has the square "
        "root of hidden-size. Default: 1.",
        check=above(0),
    )
    logit_softcap: float | None = setting(
        None, help="c of c tanh(logit / c), which keeps logits within c. Default: none.", check=above(0)
    )
    gpt_j_residual: bool = setting(
        False, help="Compute attention and MLP of a block side by side from one input.", origin="gpt-neox"
    )
    gpt_j_tied: bool = setting(
        False, help="One norm for both sublayers of gpt-j-residual, as in GPT-J itself.", origin="gpt-neox"
    )
    apply_residual_connection_post_layernorm: bool = setting(
        False, help="Take the residual after the norm instead of before it.", origin="megatron"
    )
    use_bias_in_attn_linear: bool = setting(True, help="Biases in the projections of attention.", origin="gpt-neox")
    use_bias_in_attn_output: bool | None = setting(
        None, help="A bias in the last projection of attention. Default: use-bias-in-attn-linear."
    )
    use_bias_in_mlp: bool = setting(True, help="Biases in the projections of the MLP.")
    apply_query_key_layer_scaling: bool = setting(
        False,
        help="Divide queries by the number of the layer and multiply the scores by it in fp32, against overflow in "
        "fp16; sets attention-softmax-in-fp32.",
        origin="megatron",
    )
    reset_position_ids: bool = setting(
        False, help="Count positions from the first token of each document in a sample.", origin="megatron"
    )
    reset_attention_mask: bool = setting(
        False, help="Keep attention within each document of a sample.", origin="megatron"
    )
    eod_mask_loss: bool = setting(
        False, help="Leave predictions from an end-of-document token out of the loss.", origin="megatron"
    )
    compile: bool | Literal["auto"] = setting(
        False,
        help="Compile the layers with torch.compile, for minutes at the start. auto: measured in the first steps, see "
        "docs/parallelism.md. docs/benchmarks.md has what it gains.",
        changes="speed",
    )
    use_cpu_initialization: bool = setting(
        False,
        help="Draw the initial weights on the CPU. neox always does this, from "
        "(seed, parameter name), in every layout.",
        origin="megatron",
    )
    init_method: Init = setting(
        "normal",
        help="How weights are drawn. The orthogonal methods factorize each matrix, an embedding of 50,000 by 4,096 in "
        "minutes on a CPU.",
        origin="gpt-neox",
    )
    output_layer_init_method: Init = setting(
        "scaled_normal", help="How the weights at the end of a residual branch are drawn.", origin="gpt-neox"
    )
    init_method_std: float = setting(
        0.02, help="Standard deviation of the normal inits.", check=above(0), origin="megatron"
    )


@frozen
class DropoutSection:
    """Against overfitting."""

    hidden_dropout: float = setting(
        0.1, help="Dropout on embeddings and on the output of each sublayer.", check=probability, origin="megatron"
    )
    attention_dropout: float = setting(
        0.1, help="Dropout on attention probabilities.", check=probability, origin="megatron"
    )
