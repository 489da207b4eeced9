"""The frozen numbers that every layer needs, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import Factory, field, frozen

from neox_core.errors import ConfigError
from neox_gpt.attention.size import attention_flops
from neox_gpt.contracts import FeedForwardShape, MixerShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neox_gpt.auxiliary import Auxiliary
    from neox_gpt.config.plan import GPTPlan


@frozen
class ModelShape:
    """Widths in elements, lengths in tokens, dropouts as probabilities.

    num_kv_heads: heads of keys and values, each of which serves num_heads / num_kv_heads heads of queries.
    num_unique_layers: blocks that own weights; the num_layers passes go through them in `layer_order`.
    shared_norm: one norm for both sublayers of the parallel form. query_key_layer_scaling: see `model.attention`.
    vocab_size: rows of the embedding, padding included. intermediate_size: inputs of the MLP's second projection; the
    first has as many outputs, or twice as many when the activation is gated. feed_forward_flops: see `flops_per_token`,
    of the feed-forwards of all layers; None: all are the MLP. mixer_flops: the same of the mixers; None: all are
    softmax attention. change_flops: what model changes add to them, see `change_flops`. auxiliary: what feed-forwards
    give besides their tensors. changes_draw: whether a model change has dropout. qk_norm, norm: see
    `contracts.MixerShape`. windows, positions: its fields by layer; None: no layer has a window, all layers take
    positions. attention_multiplier, attention_softcap,
    attention_output_bias: its other fields. norm_place: of each sublayer. embedding_multiplier: of the rows of the
    embedding. logit_softcap: c of `c tanh(logit / c)`. head_bias: of the output projection.
    plan: whose components the parts are, for errors.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    seq_length: int
    max_positions: int
    vocab_size: int
    num_kv_heads: int = field(default=Factory(lambda self: self.num_heads, takes_self=True))
    num_unique_layers: int = field(default=Factory(lambda self: self.num_layers, takes_self=True))
    sharing: Literal["grouped", "spaced"] = "grouped"
    shared_norm: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    query_key_layer_scaling: bool = False
    gated: bool = False
    tie_embeddings: bool = True
    parallel_residual: bool = False
    residual_post_norm: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    softmax_in_fp32: bool = False
    feed_forward_flops: int | None = None
    mixer_flops: int | None = None
    change_flops: int = 0
    auxiliary: Auxiliary | None = None
    changes_draw: bool = False
    head_dim: int = field(default=Factory(lambda self: self.hidden_size // self.num_heads, takes_self=True))
    qk_norm: Literal["head", "all", "shared"] | None = None
    norm: Callable[[int], nn.Module] | None = None
    windows: tuple[int | None, ...] | None = None
    positions: tuple[bool, ...] | None = None
    attention_multiplier: float | None = None
    attention_softcap: float | None = None
    attention_output_bias: bool | None = None
    norm_place: Literal["before", "after", "both"] = "before"
    embedding_multiplier: float | None = None
    logit_softcap: float | None = None
    head_bias: bool = False
    plan: GPTPlan | None = field(default=None, eq=False, repr=False)

    @property
    def layer_order(self) -> tuple[int, ...]:
        """Which block each of the num_layers passes goes through: grouped 0 1 0 1, spaced 0 0 1 1."""
        repeats = self.num_layers // self.num_unique_layers
        if self.sharing == "spaced":
            return tuple(layer // repeats for layer in range(self.num_layers))
        return tuple(layer % self.num_unique_layers for layer in range(self.num_layers))

    @property
    def has_dropout(self) -> bool:
        """Whether anything in the model is random in training."""
        return self.hidden_dropout > 0 or self.attention_dropout > 0 or self.changes_draw

    def mixer(self, layer: int) -> MixerShape:
        """What the mixer of a block is made for."""
        first = self.layer_order.index(layer)
        return MixerShape(
            self.hidden_size,
            self.num_heads,
            self.num_kv_heads,
            self.seq_length,
            self.attention_bias,
            self.attention_dropout,
            self.softmax_in_fp32,
            self.query_key_layer_scaling,
            layer,
            self.head_dim,
            self.qk_norm,
            self.norm,
            None if self.windows is None else self.windows[first],
            self.positions is None or self.positions[first],
            self.attention_multiplier,
            self.attention_softcap,
            self.attention_output_bias,
        )

    def feed_forward(self, layer: int) -> FeedForwardShape:
        """What the feed-forward of a block is made for."""
        return FeedForwardShape(self.hidden_size, self.intermediate_size, self.mlp_bias, self.gated, layer)

    @property
    def mlp_width(self) -> int:
        """Outputs of the MLP's first projection."""
        return 2 * self.intermediate_size if self.gated else self.intermediate_size


def build_shape(plan: GPTPlan, vocab_size: int, *, gated: bool) -> ModelShape:
    """The shape of a planned model. Raises ConfigError for numbers that make no model."""
    if plan.head_dim is None and plan.hidden_size % plan.num_attention_heads:
        raise ConfigError(
            f"hidden-size {plan.hidden_size} is not a multiple of num-attention-heads {plan.num_attention_heads}"
        )
    kv_heads, unique = plan.num_kv_heads or plan.num_attention_heads, plan.num_unique_layers or plan.num_layers
    if plan.num_attention_heads % kv_heads:
        raise ConfigError(f"{plan.num_attention_heads} attention heads are not a multiple of num-kv-heads {kv_heads}")
    if plan.num_layers % unique:
        raise ConfigError(f"num-layers {plan.num_layers} is not a multiple of num-unique-layers {unique}")
    if plan.shared_norm and not plan.parallel_residual:
        raise ConfigError("gpt-j-tied needs gpt-j-residual: there is one norm for both sublayers")
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
        num_kv_heads=kv_heads,
        num_unique_layers=unique,
        sharing=plan.param_sharing_style,
        shared_norm=plan.shared_norm,
        attention_bias=plan.attention_bias,
        mlp_bias=plan.mlp_bias,
        query_key_layer_scaling=plan.query_key_layer_scaling,
        gated=gated,
        tie_embeddings=plan.tie_embeddings,
        parallel_residual=plan.parallel_residual,
        residual_post_norm=plan.residual_post_norm,
        hidden_dropout=plan.hidden_dropout,
        attention_dropout=plan.attention_dropout,
        softmax_in_fp32=plan.attention_softmax_in_fp32,
        head_dim=plan.head_width,
        qk_norm=plan.qk_norm,
        norm=plan.norm.make,
        windows=plan.windows,
        positions=plan.positions_of_layer,
        attention_multiplier=plan.attention_multiplier,
        attention_softcap=plan.attention_softcap,
        attention_output_bias=plan.attention_output_bias,
        norm_place=plan.norm_place or "before",
        embedding_multiplier=plan.embedding_multiplier,
        logit_softcap=plan.logit_softcap,
        head_bias=bool(plan.head_bias),
        plan=plan,
    )


def num_parameters(model: nn.Module) -> int:
    """Elements of all parameters; one that is shared counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(shape: ModelShape, seq: int) -> int:
    """Floating-point operations of forward and backward for one token of a sequence of `seq` tokens.

    6 for each weight that is multiplied (the output projection included, the embedding's look-up not), and attention's;
    with model changes, what these add, less the gradients that frozen weights save.
    """
    mixed = shape.mixer_flops
    if mixed is None:
        mixed = sum(attention_flops(shape.mixer(block), seq) for block in shape.layer_order)
    fed = shape.feed_forward_flops
    if fed is None:
        fed = 6 * shape.num_layers * shape.hidden_size * (shape.mlp_width + shape.intermediate_size)
    return mixed + fed + 6 * shape.hidden_size * shape.vocab_size + shape.change_flops
