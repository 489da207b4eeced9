"""The parameters of a planned model by name and shape, told on the host: closed forms, and what components tell.

`model.gpt.GPT` has exactly these, which tests compare.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from neox_core.config.schema.choose import Chosen
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Shapes, Untold
from neox_core.hooks.component import load_path
from neox_gpt.config.plan import GPTPlan
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.contracts import FeedForwardShape, FeedForwardSize, PositionShape


@frozen(kw_only=True)
class DecoderSize(ModelSize):
    """The size of a decoder.

    split: the dimension along which tensor parallelism splits a parameter of a feed-forward, by name. kept: numbers
    that the widest feed-forward keeps of each token for the backward pass, all tensor ranks together.
    """

    split: Mapping[str, int] = field(factory=dict)
    kept: int = 0


def model_size(config: Config, model: GPTPlan) -> ModelSize | Untold:
    """The size of a valid config's model; Untold where one of its parts has no planner."""
    heads = model.num_attention_heads
    shape = PositionShape(model.hidden_size, heads, model.hidden_size // heads, model.max_position_embeddings)
    told: dict[str, Any] = {}
    asked: dict[str, tuple[Any, ...]] = {"norm": (model.hidden_size,), "activation": (), "position": (shape,)}
    if model.padded_vocab_size is None:
        asked["tokenizer"] = ()
    for kind, arguments in asked.items():
        (chosen,) = config.components(kind)
        told[kind] = said = _tell(chosen, arguments)
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
    of_block = [fed[model.place_of_feed_forward(layer)] for layer in model.first_layers]
    shapes = dict(_parameters(model, rows, of_block, norm=told["norm"], position=told["position"]))
    split = {f"layers.{at}.mlp.{name}": dim for at, each in enumerate(of_block) for name, dim in each.split.items()}
    return DecoderSize(shapes, rows, told["activation"], untold, split=split, kept=max(each.kept for each in fed))


def feed_forward_sizes(config: Config, *, gated: bool) -> Iterator[FeedForwardSize | Untold]:
    """What the planner of each feed-forward in use tells, in their order."""
    section = config.section(ModelSection)
    hidden = section.hidden_size
    shape = FeedForwardShape(hidden, section.intermediate_size or 4 * hidden, section.use_bias_in_mlp, gated)
    for chosen in config.components("feed forward"):
        yield _tell(chosen, (shape,))


def is_gated(config: Config) -> bool | Untold:
    """Whether the chosen activation is gated."""
    (activation,) = config.components("activation")
    told: bool | Untold = _tell(activation, ())
    return told


def _tell(chosen: Chosen, arguments: tuple[Any, ...]) -> Any:
    """What a component's planner says, or Untold."""
    component = chosen.entry.component
    name = f"{chosen.entry.kind} {component.name}"
    if component.planner is None:
        return Untold(f"{name} does not tell before it is loaded")
    try:
        return load_path(component.planner)(*arguments, chosen.settings)
    except (OSError, ValueError):
        return Untold(f"the files of {name} do not tell")
    except Exception as error:  # noqa: BLE001 the code of a plugin, and its files
        return Untold(f"the planner of {name} failed: {type(error).__name__}")


def _parameters(
    model: GPTPlan, rows: int, fed: Sequence[FeedForwardSize], *, norm: Shapes, position: Shapes
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = model.hidden_size
    kv_heads = model.num_kv_heads or model.num_attention_heads
    head_dim = hidden // model.num_attention_heads
    yield "embedding.weight", (rows, hidden)
    yield from _within("position", position)
    for layer, feed_forward in enumerate(fed):
        at = f"layers.{layer}"
        yield from _within(f"{at}.attention_norm", norm)
        yield from _linear(f"{at}.attention.qkv", hidden, hidden + 2 * kv_heads * head_dim, bias=model.attention_bias)
        yield from _linear(f"{at}.attention.output", hidden, hidden, bias=model.attention_bias)
        if not model.shared_norm:
            yield from _within(f"{at}.mlp_norm", norm)
        yield from _within(f"{at}.mlp", feed_forward.shapes)
    yield from _within("final_norm", norm)
    if not model.tie_embeddings:
        yield "head.weight", (rows, hidden)


def _within(name: str, shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((f"{name}.{inner}", tuple(shape)) for inner, shape in shapes.items())


def _linear(name: str, inputs: int, outputs: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)
