"""The parameters of a planned model by name and shape, told on the host: closed forms, and what components tell.

`model.gpt.GPT` has exactly these, which tests compare.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from attrs import evolve, field, frozen

from neox_core.config.schema.choose import Chosen
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Shapes, Untold
from neox_gpt.attention.size import attention_flops
from neox_gpt.change_contracts import ChangeSize, LinearShape
from neox_gpt.config.plan import ADDED, GPTPlan
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.model import DropoutSection, ModelSection
from neox_gpt.config.told import dimension, tell
from neox_gpt.contracts import (
    FeedForwardShape,
    FeedForwardSize,
    MixerShape,
    MixerSize,
    PositionShape,
    PositionSize,
)


@frozen(kw_only=True)
class DecoderSize(ModelSize):
    """The size of a decoder.

    split: the dimension along which tensor parallelism splits a parameter of a mixer, a feed-forward or a model
    change, by name.
    spread: over how many data-parallel ranks the first dimension of a parameter of a feed-forward is spread, by name.
    of_norm: parameters of a norm.
    kept: numbers that mixer and feed-forward of the widest layer keep of each token for the backward pass, all tensor
    ranks together.
    """

    split: Mapping[str, int] = field(factory=dict)
    kept: int = 0
    spread: Mapping[str, int] = field(factory=dict)
    of_norm: int = 0


def model_size(config: Config, model: GPTPlan, *, changed: bool = True) -> DecoderSize | Untold:
    """The size of a valid config's model; Untold where one of its parts has no planner.

    changed: with what model changes add.
    """
    position = position_size(config)
    if isinstance(position, Untold):
        return position
    told: dict[str, Any] = {}
    asked: dict[str, tuple[Any, ...]] = {"norm": (model.hidden_size,), "activation": ()}
    if model.padded_vocab_size is None:
        asked["tokenizer"] = ()
    for kind, arguments in asked.items():
        (chosen,) = config.components(kind)
        told[kind] = said = tell(chosen, arguments)
        if isinstance(said, Untold) and kind != "tokenizer":
            return said
    ids, multiple = told.get("tokenizer", 0), model.make_vocab_size_divisible_by
    untold = ids.reason if isinstance(ids, Untold) else ""
    rows = 0 if untold else model.padded_vocab_size or -(-ids // multiple) * multiple
    fed: list[FeedForwardSize] = []
    for said in feed_forward_sizes(config, gated=told["activation"]):
        if isinstance(said, Untold):
            return said
        fed.append(said)
    mixed: list[MixerSize] = []
    for mixer in mixer_sizes(config):
        if isinstance(mixer, Untold):
            return mixer
        within: dict[str, tuple[int, ...]] = {}
        for name, width in mixer.norms.items():
            within |= _within(name, tell(config.components("norm")[0], (width,)))
        mixed.append(evolve(mixer, shapes={**mixer.shapes, **within}))
    of_block = [
        (mixed[model.place_of_mixer(layer)], fed[model.place_of_feed_forward(layer)]) for layer in model.first_layers
    ]
    shapes = dict(_parameters(model, rows, of_block, norm=told["norm"], position=position.shapes))
    split = {
        f"layers.{at}.{part}.{name}": dimension(how)
        for at, sizes in enumerate(of_block)
        for part, told_split in zip(("attention", "mlp"), (sizes[0].split, sizes[1].split), strict=True)
        for name, how in told_split.items()
    }
    spread = {
        f"layers.{at}.mlp.{name}": ranks for at, (_, fed) in enumerate(of_block) for name, ranks in fed.spread.items()
    }
    kept = max(mixer.kept + feed_forward.kept for mixer, feed_forward in of_block)
    added: dict[str, tuple[int, ...]] = {}
    for chosen in config.components("model change") if changed else ():
        for linear in linears(shapes, split):
            change = tell_change(chosen, linear)
            if isinstance(change, Untold):
                return change
            at = f"{linear.name}{ADDED}{chosen.entry.component.name}"
            own = ChangeSize() if change is None else change
            added |= _within(at, own.shapes)
            split |= {f"{at}.{name}": dim for name, dim in own.split.items()}
    flops = 0 if untold or added else _flops(config, model, rows, mixed, fed)
    shapes |= added
    return DecoderSize(
        shapes,
        rows,
        told["activation"],
        untold,
        split=split,
        kept=kept,
        spread=spread,
        of_norm=len(told["norm"]),
        flops=flops,
        width=model.hidden_size,
    )


def _flops(
    config: Config, model: GPTPlan, rows: int, mixed: Sequence[MixerSize], fed: Sequence[FeedForwardSize]
) -> int:
    """FLOPs of forward and backward per token of a model without changes, as `shape.flops_per_token` counts them."""
    total = 6 * model.hidden_size * rows
    shape = mixer_shape(config)
    for layer in range(model.num_layers):
        feed_forward = fed[model.place_of_feed_forward(layer)]
        matrices = sum(prod(each) for each in feed_forward.shapes.values() if len(each) > 1)
        total += 6 * matrices if feed_forward.flops is None else feed_forward.flops
        total += mixed[model.place_of_mixer(layer)].flops
        window = model.windows[layer] if model.windows else None
        if window is not None:  # of softmax attention, whose planner is asked once for all layers
            seen = evolve(shape, window=window)
            total += attention_flops(seen, shape.seq_length) - attention_flops(shape, shape.seq_length)
    return total


def position_size(config: Config) -> PositionSize | Untold:
    """What the planner of the position tells."""
    model, (chosen,) = config.section(ModelSection), config.components("position")
    width = model.head_dim or model.hidden_size // model.num_attention_heads
    shape = PositionShape(model.hidden_size, model.num_attention_heads, width, model.max_position_embeddings)
    said = tell(chosen, (shape,))
    return said if isinstance(said, PositionSize | Untold) else PositionSize(said)


def mixer_sizes(config: Config) -> Iterator[MixerSize | Untold]:
    """What the planner of each mixer in use tells, in their order."""
    shape = mixer_shape(config)
    for chosen in config.components("mixer"):
        yield tell(chosen, (shape,))


def mixer_shape(config: Config) -> MixerShape:
    """What the planner of each mixer is asked about."""
    model, attention = config.section(ModelSection), config.section(AttentionSection)
    return MixerShape(
        model.hidden_size,
        model.num_attention_heads,
        model.num_kv_heads or model.num_attention_heads,
        config.section(DataSection).seq_length,
        model.use_bias_in_attn_linear,
        config.section(DropoutSection).attention_dropout,
        attention.attention_softmax_in_fp32 or model.apply_query_key_layer_scaling,
        model.apply_query_key_layer_scaling,
        head_dim=model.head_dim or model.hidden_size // model.num_attention_heads,
        qk_norm="shared" if attention.use_qk_layernorm else attention.qk_norm,
        output_bias=output_bias(model),
    )


def output_bias(model: ModelSection) -> bool | None:
    """`use-bias-in-attn-output` where it differs from `use-bias-in-attn-linear`."""
    written = model.use_bias_in_attn_output
    return None if written == model.use_bias_in_attn_linear else written


def linears(shapes: Shapes, split: Mapping[str, int]) -> Iterator[LinearShape]:
    """The linear layers of blocks that model changes are asked about, from the parameters of a model without them."""
    for name, shape in shapes.items():
        layer, _, own = name.rpartition(".")
        if own == "weight" and len(shape) == 2 and name in split and ADDED not in name:
            yield LinearShape(layer, shape[1], shape[0], "inputs" if split[name] else "outputs")


def tell_change(chosen: Chosen, linear: LinearShape) -> ChangeSize | Untold | None:
    """What the planner of a model change tells of a layer."""
    told: ChangeSize | Untold | None = tell(chosen, (linear,))
    return told


def feed_forward_sizes(config: Config, *, gated: bool) -> Iterator[FeedForwardSize | Untold]:
    """What the planner of each feed-forward in use tells, in their order."""
    section = config.section(ModelSection)
    hidden = section.hidden_size
    shape = FeedForwardShape(hidden, section.intermediate_size or 4 * hidden, section.use_bias_in_mlp, gated)
    for chosen in config.components("feed forward"):
        yield tell(chosen, (shape,))


def is_gated(config: Config) -> bool | Untold:
    """Whether the chosen activation is gated."""
    (activation,) = config.components("activation")
    told: bool | Untold = tell(activation, ())
    return told


def _parameters(
    model: GPTPlan, rows: int, blocks: Sequence[tuple[MixerSize, FeedForwardSize]], *, norm: Shapes, position: Shapes
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = model.hidden_size
    yield "embedding.weight", (rows, hidden)
    yield from _within("position", position)
    for layer, (mixer, feed_forward) in enumerate(blocks):
        at = f"layers.{layer}"
        if model.norm_place != "after":
            yield from _within(f"{at}.attention_norm", norm)
        yield from _within(f"{at}.attention", mixer.shapes)
        if model.norm_place != "after" and not model.shared_norm:
            yield from _within(f"{at}.mlp_norm", norm)
        for place in ("attention", "mlp") if model.norm_place else ():
            yield from _within(f"{at}.{place}_post_norm", norm)
        yield from _within(f"{at}.mlp", feed_forward.shapes)
    yield from _within("final_norm", norm)
    if not model.tie_embeddings:
        yield "head.weight", (rows, hidden)
        if model.head_bias:
            yield "head.bias", (rows,)


def _within(name: str, shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((f"{name}.{inner}", tuple(shape)) for inner, shape in shapes.items())
