"""What a rank is told of a decoder."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import field, frozen

from neox_core.errors import UsageError
from neox_core.plan.runfile import ComponentRef, ModelPlan, RunPlan
from neox_core.plan.source import FIRST, START, of
from neox_gpt.config.kinds import ACTIVATION, FEED_FORWARD, MIXER, MODEL_CHANGE, NORM, POSITION, SPARSE_LAYOUT

if TYPE_CHECKING:
    from neox_gpt.gpt import GPT
    from neox_gpt.row import DecoderRow

SHAPING = {
    "hidden_size": "hidden-size",
    "intermediate_size": "intermediate-size",
    "padded_vocab_size": "padded-vocab-size",
    "tie_embeddings": "tied embeddings",
    "shared_norm": "gpt-j-tied",
    "attention_bias": "use-bias-in-attn-linear",
    "mlp_bias": "use-bias-in-mlp",
    "qk_norm": "qk-norm",
    "attention_output_bias": "use-bias-in-attn-output",
    "norm_place": "norm-place",
    "head_bias": "use-bias-in-head",
}
"""The fields that give weights their shapes, and their names in messages."""


REGULAR = ComponentRef("feed forward", "regular", "neox-gpt", version("neox-gpt"), "neox_gpt.mlp:MLP")
"""The feed-forward of plans that name none."""
ADDED = ".changes."
"""In the name of a parameter that a model change adds, between those of the layer and of the change."""

SOFTMAX_ATTENTION = ComponentRef(
    "mixer", "global", "neox-gpt", version("neox-gpt"), "neox_gpt.attention.attention:Attention"
)
"""The mixer of plans that name none."""


@frozen
class MixerFacts:
    """What a rank and `neox generate` use of `contracts.MixerSize`.

    shapes None: a plan of an earlier version. norms: names of parts whose parameters `shapes` leaves out.
    """

    flops: int = field(metadata=of("attention_config", apart=START))
    decodes: bool = field(metadata=of("attention_config", apart=START))
    needs_positions: bool = field(metadata=of("attention_config", apart=START))
    shapes: dict[str, tuple[int, ...]] | None = field(default=None, metadata=of("attention_config", apart=START))
    norms: tuple[str, ...] = field(default=(), metadata=of("attention_config", apart=START))


@frozen(kw_only=True)
class GPTPlan(ModelPlan):
    """The decoder. Widths in elements; `padded_vocab_size` None: from the tokenizer, rounded up.

    num_kv_heads None: as many as heads. num_unique_layers None: as many as layers. recompute None: keep activations.
    kernels: for each op that a kernel may compute; ops that are not named are computed by their references.
    sparse_gradients: the embedding's gradient is sent as the rows that a step has used.
    layout_of_layer: for each layer its place in `layouts`, None where it sees all before it; empty: all layers do.
    mixers, mixer_facts, mixer_of_layer: as those of feed-forwards; None: softmax attention, in all layers.
    feed_forwards None: the MLP, as in plans of earlier versions. feed_forward_of_layer: for each layer its place in
    `feed_forwards`; None: all have the first. feed_forward_shapes: of the parameters of each of `feed_forwards`, as its
    planner tells them; None: it does not. changes: model changes in their order; None: there are none.
    head_dim: None: hidden_size / num_attention_heads. windows: for each layer the tokens before itself that a token
    sees; None: all, in that layer or in all. positions_of_layer: whether a layer takes positions; None: all do.
    norm_place None: before each sublayer. attention_output_bias None: as attention_bias. head_bias None: there is none.
    causal: no token sees a later one, which is so for every plan of a class.
    """

    causal: ClassVar[bool] = True

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int = field(metadata=of("intermediate_size", derived="4 x hidden-size"))
    max_position_embeddings: int
    norm: ComponentRef = field(metadata=of(kind=NORM))
    activation: ComponentRef = field(metadata=of(kind=ACTIVATION))
    position: ComponentRef = field(metadata=of(kind=POSITION))
    tie_embeddings: bool = field(metadata=of("no_weight_tying"))
    parallel_residual: bool = field(metadata=of("gpt_j_residual"))
    residual_post_norm: bool = field(metadata=of("apply_residual_connection_post_layernorm"))
    hidden_dropout: float
    attention_dropout: float
    init_method: str = field(metadata=of("init_method", apart=FIRST))
    output_init_method: str = field(metadata=of("output_layer_init_method", apart=FIRST))
    init_std: float = field(metadata=of("init_method_std", apart=FIRST))
    attention_softmax_in_fp32: bool = field(metadata=of("attention_softmax_in_fp32", "apply_query_key_layer_scaling"))
    num_kv_heads: int | None = None
    num_unique_layers: int | None = None
    param_sharing_style: Literal["grouped", "spaced"] = "grouped"
    shared_norm: bool = field(default=False, metadata=of("gpt_j_tied"))
    attention_bias: bool = field(default=True, metadata=of("use_bias_in_attn_linear"))
    mlp_bias: bool = field(default=True, metadata=of("use_bias_in_mlp"))
    query_key_layer_scaling: bool = field(default=False, metadata=of("apply_query_key_layer_scaling"))
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    compile: bool | Literal["auto"] = False
    sparse_gradients: bool = False
    layouts: tuple[ComponentRef, ...] = field(
        default=(), metadata=of("sparsity", "attention_config", kind=SPARSE_LAYOUT)
    )
    layout_of_layer: tuple[int | None, ...] = field(
        default=(), metadata=of("sparsity", "attention_config", "sparse_attention.mode")
    )

    mixers: tuple[ComponentRef, ...] | None = field(default=None, metadata=of(kind=MIXER))
    mixer_facts: tuple[MixerFacts, ...] | None = field(default=None, metadata=of("attention_config", apart=START))
    mixer_of_layer: tuple[int, ...] | None = field(default=None, metadata=of("attention_config"))
    feed_forwards: tuple[ComponentRef, ...] | None = field(default=None, metadata=of(kind=FEED_FORWARD))
    feed_forward_of_layer: tuple[int, ...] | None = field(default=None, metadata=of("mlp_type"))
    feed_forward_shapes: tuple[dict[str, tuple[int, ...]] | None, ...] | None = field(
        default=None, metadata=of("mlp_type", apart=START)
    )

    changes: tuple[ComponentRef, ...] | None = field(default=None, metadata=of(kind=MODEL_CHANGE))

    head_dim: int | None = None
    qk_norm: Literal["head", "all", "shared"] | None = field(default=None, metadata=of("qk_norm", "use_qk_layernorm"))
    windows: tuple[int | None, ...] | None = field(
        default=None, metadata=of("sliding_window_width", "attention_config", "sparsity")
    )
    positions_of_layer: tuple[bool, ...] | None = field(default=None, metadata=of("attention_config"))

    norm_place: Literal["after", "both"] | None = field(default=None, metadata=of("norm_place"))
    attention_output_bias: bool | None = field(default=None, metadata=of("use_bias_in_attn_output"))
    attention_multiplier: float | None = None
    attention_softcap: float | None = None
    embedding_multiplier: float | None = None
    logit_softcap: float | None = None
    head_bias: bool | None = field(default=None, metadata=of("use_bias_in_head"))

    @property
    def head_width(self) -> int:
        """Elements of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def place_of_mixer(self, layer: int) -> int:
        """Which of `mixers` a layer has."""
        return self.mixer_of_layer[layer] if self.mixer_of_layer else 0

    def mixer(self, block: int) -> ComponentRef:
        """The mixer of a block, which all layers have that share it."""
        return (self.mixers or (SOFTMAX_ATTENTION,))[self.place_of_mixer(self.first_layers[block])]

    def place_of_feed_forward(self, layer: int) -> int:
        """Which of `feed_forwards` a layer has."""
        return self.feed_forward_of_layer[layer] if self.feed_forward_of_layer else 0

    def feed_forward(self, block: int) -> ComponentRef:
        """The feed-forward of a block, which all layers have that share it."""
        return self.used_feed_forwards[self.place_of_feed_forward(self.first_layers[block])]

    @property
    def used_feed_forwards(self) -> tuple[ComponentRef, ...]:
        """The feed-forwards, the regular one where the config names none."""
        return self.feed_forwards or (REGULAR,)

    @property
    def first_layers(self) -> Sequence[int]:
        """For each block that owns weights the first layer that has it."""
        blocks = self.num_unique_layers or self.num_layers
        spaced = self.param_sharing_style == "spaced"
        return range(0, self.num_layers, self.num_layers // blocks) if spaced else range(blocks)

    def in_short(self) -> str:
        return f"{self.num_layers} layers of width {self.hidden_size}"

    def in_words(self) -> str:
        parts = f"{self.norm.name}, {self.position.name}, {self.activation.name}"
        size = f"{self.num_layers} layers, hidden {self.hidden_size}, {self.num_attention_heads} heads"
        return f"{size}, sequence {self.seq_length}; {parts}"

    @classmethod
    def shaping(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        found = {words: model.get(name) for name, words in SHAPING.items()}
        found["num-unique-layers"] = model.get("num_unique_layers") or model.get("num_layers")
        found["mlp-type"] = _named(model, "feed_forwards", "feed_forward_of_layer", REGULAR.name)
        found["attention-config"] = _named(model, "mixers", "mixer_of_layer", SOFTMAX_ATTENTION.name)
        hidden, heads = model.get("hidden_size"), model.get("num_attention_heads")
        keys = model.get("num_kv_heads") or heads
        if isinstance(hidden, int) and isinstance(heads, int) and isinstance(keys, int) and heads > 0:
            own = model.get("head_dim")
            width = own if isinstance(own, int) and own > 0 else hidden // heads
            found |= {"the width of all heads": heads * width, "the width of all keys": keys * width}
            if model.get("qk_norm"):
                found["head-dim"] = width
        return found

    def make_model(self, *parts: Any, **more: Any) -> "GPT":
        """The whole model of its parts, as `gpt.GPT` takes them; a plan of another model makes its own."""
        from neox_gpt.gpt import GPT  # imports torch

        return GPT(*parts, **more)

    def make_row(self, *parts: Any) -> "DecoderRow":
        """The same as a row of layers, of what `row.DecoderRow` takes."""
        from neox_gpt.row import DecoderRow  # imports torch

        return DecoderRow(*parts)

    def exported(self, config: Any) -> "GPTPlan":
        from neox_gpt.config.left_out import exported_plan

        return exported_plan(self, config) if self.changes else self

    def adds(self, name: str) -> bool:
        return bool(self.changes) and ADDED in name

    def trained(self) -> Callable[[str], bool]:
        if not self.changes:
            return super().trained()
        from neox_gpt.changes import Changes  # imports torch

        return Changes(self).trains


def _named(model: Mapping[str, Any], components: str, of_layer: str, default: str) -> str | None:
    """The components of the layers of a plan as run.json holds it; None for what is not one."""
    used, places = model.get(components) or [{"name": default}], model.get(of_layer)
    try:
        names = [str(each["name"]) for each in used]
        return ", ".join(names[place] for place in places or (0,))
    except (TypeError, KeyError, IndexError):
        return None


def gpt_plan_in(run: RunPlan) -> GPTPlan:
    """The plan of a run's decoder. Raises UsageError for a run of another architecture, PluginError for one that is not
    installed.
    """
    run.architecture.load()
    if not isinstance(run.model, GPTPlan):
        raise UsageError(f"{run.architecture.owner}: this command is for decoders of architecture gpt")
    return run.model
