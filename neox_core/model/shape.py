"""The frozen numbers that every layer needs, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from neox_core.plan.runfile import ModelPlan


@frozen
class ModelShape:
    """Widths in elements, lengths in tokens, dropouts as probabilities.

    vocab_size: rows of the embedding, padding included. intermediate_size: inputs of the MLP's second projection; the
    first has as many outputs, or twice as many when the activation is gated.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    seq_length: int
    max_positions: int
    vocab_size: int
    gated: bool = False
    tie_embeddings: bool = True
    parallel_residual: bool = False
    residual_post_norm: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    softmax_in_fp32: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def has_dropout(self) -> bool:
        return self.hidden_dropout > 0 or self.attention_dropout > 0

    @property
    def mlp_width(self) -> int:
        """Outputs of the MLP's first projection."""
        return 2 * self.intermediate_size if self.gated else self.intermediate_size


def build_shape(plan: ModelPlan, vocab_size: int, *, gated: bool) -> ModelShape:
    """The shape of a planned model. Raises ConfigError for numbers that make no model."""
    if plan.hidden_size % plan.num_attention_heads:
        raise ConfigError(
            f"hidden-size {plan.hidden_size} is not a multiple of num-attention-heads {plan.num_attention_heads}"
        )
    if plan.parallel_residual and plan.residual_post_norm:
        raise ConfigError(
            "gpt-j-residual and apply-residual-connection-post-layernorm exclude each other",
            hint="the parallel form has two norms of one input, so there is no single normalised residual",
        )
    return ModelShape(
        num_layers=plan.num_layers,
        hidden_size=plan.hidden_size,
        num_heads=plan.num_attention_heads,
        intermediate_size=plan.intermediate_size,
        seq_length=plan.seq_length,
        max_positions=plan.max_position_embeddings,
        vocab_size=vocab_size,
        gated=gated,
        tie_embeddings=plan.tie_embeddings,
        parallel_residual=plan.parallel_residual,
        residual_post_norm=plan.residual_post_norm,
        hidden_dropout=plan.hidden_dropout,
        attention_dropout=plan.attention_dropout,
        softmax_in_fp32=plan.attention_softmax_in_fp32,
    )


def padded_vocab(plan: ModelPlan, tokenizer_vocab_size: int | None) -> int:
    """Rows of the embedding: `padded-vocab-size`, or the tokenizer's vocabulary rounded up to a multiple of
    `make-vocab-size-divisible-by` (50257 with 128 gives 50304).

    Raises ConfigError when neither is known, or when the tokenizer has more ids than rows were asked for.
    """
    if plan.padded_vocab_size is not None:
        if tokenizer_vocab_size is not None and tokenizer_vocab_size > plan.padded_vocab_size:
            raise ConfigError(
                f"padded-vocab-size {plan.padded_vocab_size} is smaller than the tokenizer's {tokenizer_vocab_size} ids"
            )
        return plan.padded_vocab_size
    if tokenizer_vocab_size is None:
        raise ConfigError("the size of the vocabulary is not known", hint="set tokenizer-type or padded-vocab-size")
    multiple = plan.make_vocab_size_divisible_by
    return -(-tokenizer_vocab_size // multiple) * multiple


def num_parameters(model: nn.Module) -> int:
    """Elements of all parameters; one that is shared counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(shape: ModelShape, seq: int) -> int:
    """Floating-point operations of forward and backward for one token of a sequence of `seq` tokens.

    6 for each weight that is multiplied (the output projection included, the embedding's look-up not), and
    12 * layers * hidden * seq for attention, its causal half not taken off: PaLM (arXiv:2204.02311), appendix B.
    """
    attention = 4 * shape.hidden_size**2
    mlp = shape.hidden_size * (shape.mlp_width + shape.intermediate_size)
    weights = shape.num_layers * (attention + mlp) + shape.hidden_size * shape.vocab_size
    return 6 * weights + 12 * shape.num_layers * shape.hidden_size * seq
