"""What the families of transformers have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

    from neox_core.plan.runfile import ComponentRef

STORED_AS = {"lm_head.weight": "embed_out.weight"}
"""Names of weights in transformers 5, and in the files where those differ."""


def demand(config: Mapping[str, Any], key: str, *allowed: Any) -> Any:
    """The value of a key of config.json, the first of `allowed` where it is missing. ConfigError for another."""
    value = config.get(key, allowed[0])
    if value not in allowed:
        raise ConfigError(
            f"config.json: {key} is {value!r}; this version of neox has {' or '.join(map(repr, allowed))}"
        )
    return value


def needed(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key that must be there."""
    if config.get(key) is None:
        raise ConfigError(f"config.json: {key} is missing")
    return config[key]


def settings(part: ComponentRef, *names: str) -> Mapping[str, Any]:
    """The settings of a part, which must be one of first-party `names`."""
    if part.name not in names or not part.plugin.startswith("neox-"):
        raise ConfigError(f"{part.kind} {part.name} of {part.plugin}: this family has {' or '.join(names)}")
    return part.settings


def same(key: str, value: Any, theirs: Any) -> None:
    """Raises ConfigError where a key of a config has another value than every model of the family."""
    if value != theirs:
        raise ConfigError(f"{key}: {json.dumps(value)}; this family has {json.dumps(theirs)}")


def special_token(config: Mapping[str, Any], name: str) -> str | None:
    """A special token of a tokenizer_config.json, as text or as an object."""
    value = config.get(name)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def plain_layers(model: GPTPlan, **has: bool) -> None:
    """Raises ConfigError for what no family of transformers here has, or for what this one has not.

    has: by field of the plan, or as `attention` for windows and layers without positions, what the family may have.
    """
    switches = {
        "num-unique-layers": model.num_unique_layers not in (None, model.num_layers),
        "sparse attention": bool(model.layouts),
        "attention-config": model.mixers is not None,
        "mlp-type": model.feed_forwards is not None,
        "apply-residual-connection-post-layernorm": model.residual_post_norm,
        "a layer without positions": model.positions_of_layer is not None,
    }
    of_family = {
        "shared_norm": ("gpt-j-tied", model.shared_norm),
        "head_dim": ("head-dim", model.head_dim not in (None, model.hidden_size // model.num_attention_heads)),
        "qk_norm": ("qk-norm", model.qk_norm is not None),
        "windows": ("sliding-window-width", model.windows is not None),
        "norm_place": ("norm-place", model.norm_place is not None),
        "attention_output_bias": ("use-bias-in-attn-output", model.attention_output_bias is not None),
        "attention_multiplier": ("attention-multiplier", model.attention_multiplier is not None),
        "attention_softcap": ("attention-softcap", model.attention_softcap is not None),
        "embedding_multiplier": ("embedding-multiplier", model.embedding_multiplier is not None),
        "logit_softcap": ("logit-softcap", model.logit_softcap is not None),
        "head_bias": ("use-bias-in-head", bool(model.head_bias)),
        "parallel_residual": ("gpt-j-residual", model.parallel_residual),
        "num_kv_heads": ("num-kv-heads", model.num_kv_heads not in (None, model.num_attention_heads)),
    }
    switches |= {key: on for field, (key, on) in of_family.items() if not has.get(field)}
    for key, on in switches.items():
        if on:
            raise ConfigError(f"{key} is something that this family of transformers does not have")


def their_logits(
    folder: Path,
    tokens: Tensor,
    *,
    own_code: bool = False,
    joined: Callable[[str], tuple[Sequence[str], Callable[[Sequence[Tensor]], Tensor]] | None] = lambda name: None,
) -> Tensor | None:
    """Logits of transformers' own model, where it is installed; memory is taken for one layer and the embeddings.

    own_code: by the model of `modeling_neox` in this package. joined: of a parameter that is not in the files by its
    own name, the names there that it is made of, and how.
    """
    if find_spec("transformers") is None:
        return None
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    files = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            files.update(dict.fromkeys(file.keys(), path))

    def get(name: str) -> Tensor:
        with safe_open(files[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def fill(parameters: Iterable[tuple[str, Tensor]]) -> None:
        for name, parameter in parameters:
            made_of = None if name in files else joined(name)
            stored, join = made_of or ((name if name in files else STORED_AS.get(name, name),), _first)
            if not files.keys() >= set(stored):
                raise CheckpointError(f"{folder}: this version of transformers asks for {name}, which is not there")
            parameter.data.copy_(join([get(each) for each in stored]))

    def build(num_layers: int | None = None) -> Any:
        if own_code:
            from neox_hf.modeling_neox import NeoxConfig, NeoxForCausalLM

            config: Any = NeoxConfig.from_pretrained(folder)
        else:
            config = AutoConfig.from_pretrained(folder)
        given = config.num_hidden_layers
        config.num_hidden_layers = num_layers or given
        if own_code:
            made: Any = NeoxForCausalLM(config).float().eval()
        else:
            made = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        made.config.num_hidden_layers = given
        return made

    model = build(1)
    with torch.device("meta"):
        whole = build()  # for its layers, each of which knows its place
    name_of_layers = next(name for name in ("layers", "h") if hasattr(model.base_model, name))
    layers = f"{model.base_model_prefix}.{name_of_layers}"
    fill((name, each) for name, each in model.named_parameters() if not name.startswith(f"{layers}."))
    buffers = dict(getattr(model.base_model, name_of_layers)[0].named_buffers())

    def come(layer: Any, *_: object) -> None:
        layer.to_empty(device="cpu")
        fill((f"{layers}.{places[layer]}.{name}", each) for name, each in layer.named_parameters())
        for name, each in layer.named_buffers():
            each.copy_(buffers[name])

    def go(layer: Any, *_: object) -> None:
        layer.to("meta")

    places = {layer: place for place, layer in enumerate(getattr(whole.base_model, name_of_layers))}
    for layer in places:
        layer.register_forward_pre_hook(come)
        layer.register_forward_hook(go)
    setattr(model.base_model, name_of_layers, getattr(whole.base_model, name_of_layers))
    with torch.no_grad():
        found: Tensor = model(tokens, use_cache=False).logits
    return found


def _first(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0]
