"""The parameters of a planned model by name and shape, told on the host: closed forms, and what components tell.

`model.gpt.GPT` has exactly these, which tests compare.
"""

from collections.abc import Iterator
from typing import Any

from neox_core.config.schema.choose import Chosen
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Shapes, Untold
from neox_core.hooks.component import load_path
from neox_gpt.config.plan import GPTPlan
from neox_gpt.contracts import PositionShape


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
    shapes = dict(_parameters(model, rows, norm=told["norm"], position=told["position"], gated=told["activation"]))
    return ModelSize(shapes, rows, told["activation"], untold)


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
    model: GPTPlan, rows: int, *, norm: Shapes, position: Shapes, gated: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width = model.hidden_size, model.intermediate_size
    kv_heads = model.num_kv_heads or model.num_attention_heads
    head_dim = hidden // model.num_attention_heads
    yield "embedding.weight", (rows, hidden)
    yield from _within("position", position)
    for layer in range(model.num_unique_layers or model.num_layers):
        at = f"layers.{layer}"
        yield from _within(f"{at}.attention_norm", norm)
        yield from _linear(f"{at}.attention.qkv", hidden, hidden + 2 * kv_heads * head_dim, bias=model.attention_bias)
        yield from _linear(f"{at}.attention.output", hidden, hidden, bias=model.attention_bias)
        if not model.shared_norm:
            yield from _within(f"{at}.mlp_norm", norm)
        yield from _linear(f"{at}.mlp.up", hidden, 2 * width if gated else width, bias=model.mlp_bias)
        yield from _linear(f"{at}.mlp.down", width, hidden, bias=model.mlp_bias)
    yield from _within("final_norm", norm)
    if not model.tie_embeddings:
        yield "head.weight", (rows, hidden)


def _within(name: str, shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((f"{name}.{inner}", tuple(shape)) for inner, shape in shapes.items())


def _linear(name: str, inputs: int, outputs: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)
