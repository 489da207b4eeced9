"""What the families of transformers have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def rope(config: Mapping[str, Any], share: float) -> tuple[float, float]:
    """Base and turned share of rotary positions, in either spelling of transformers. share: the family's default."""
    written = config.get("rope_parameters") or {}
    kinds = {"type": "default", "rope_type": "default"} | written | (config.get("rope_scaling") or {})
    if not {kinds["type"], kinds["rope_type"]} <= {"default"}:
        raise ConfigError("config.json: scaled rotary positions, which this version of neox does not have")
    base = written.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    turned = written.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", share)))
    return float(base), float(turned)


def settings(part: ComponentRef, *names: str) -> Mapping[str, Any]:
    """The settings of a part, which must be one of first-party `names`."""
    if part.name not in names or not part.plugin.startswith("neox-"):
        raise ConfigError(f"{part.kind} {part.name} of {part.plugin}: this family has {' or '.join(names)}")
    return part.settings


def special_token(config: Mapping[str, Any], name: str) -> str | None:
    """A special token of a tokenizer_config.json, as text or as an object."""
    value = config.get(name)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def plain_layers(model: GPTPlan, *, shared_norm: bool = False) -> None:
    """Raises ConfigError for what no family of transformers here has. shared_norm: that the family has one norm too."""
    switches = {
        "num-unique-layers": model.num_unique_layers not in (None, model.num_layers),
        "gpt-j-tied": model.shared_norm and not shared_norm,
        "sparse attention": bool(model.layouts),
        "attention-config": model.mixers is not None,
        "mlp-type": model.feed_forwards is not None,
        "apply-residual-connection-post-layernorm": model.residual_post_norm,
    }
    for key, on in switches.items():
        if on:
            raise ConfigError(f"{key} is something that transformers has no model for")


def their_logits(folder: Path, tokens: Tensor, *, own_code: bool = False) -> Tensor | None:
    """Logits of transformers' own model, where it is installed; memory is taken for one layer and the embeddings.

    own_code: by the model of `modeling_neox` in this package.
    """
    if find_spec("transformers") is None:
        return None
    import torch
    from safetensors import safe_open
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM

    files = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            files.update(dict.fromkeys(file.keys(), path))

    def fill(parameters: Iterable[tuple[str, Tensor]]) -> None:
        for name, parameter in parameters:
            stored = name if name in files else STORED_AS.get(name, name)
            if stored not in files:
                raise CheckpointError(f"{folder}: this version of transformers asks for {name}, which is not there")
            with safe_open(files[stored], "pt") as file:
                parameter.data.copy_(file.get_tensor(stored))

    if own_code:
        from neox_hf.modeling_neox import NeoxConfig, NeoxForCausalLM

        config: Any = NeoxConfig.from_pretrained(folder)
    else:
        config = AutoConfig.from_pretrained(folder)
    num_layers, config.num_hidden_layers = config.num_hidden_layers, 1
    if own_code:
        model: Any = NeoxForCausalLM(config).float().eval()
    else:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    layers = f"{model.base_model_prefix}.layers"
    fill((name, each) for name, each in model.named_parameters() if not name.startswith(f"{layers}."))
    layer, places = model.base_model.layers[0], iter(range(num_layers))

    def become_the_next(*_: object) -> None:
        place = next(places)
        fill((f"{layers}.{place}.{name}", each) for name, each in layer.named_parameters())

    layer.register_forward_pre_hook(become_the_next)
    model.base_model.layers = nn.ModuleList([layer] * num_layers)
    model.config.num_hidden_layers = num_layers
    with torch.no_grad():
        found: Tensor = model(tokens, use_cache=False).logits
    return found
