"""What the families of transformers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import ComponentRef, ModelPlan


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


def plain_layers(model: ModelPlan) -> None:
    """Raises ConfigError for what no family of transformers here has."""
    switches = {
        "num-unique-layers": model.num_unique_layers not in (None, model.num_layers),
        "gpt-j-tied": model.shared_norm,
        "apply-residual-connection-post-layernorm": model.residual_post_norm,
    }
    for key, on in switches.items():
        if on:
            raise ConfigError(f"{key} is something that transformers has no model for")


def their_logits(folder: Path, tokens: Tensor) -> Tensor | None:
    """Logits of transformers' own model, where it is installed."""
    if find_spec("transformers") is None:
        return None
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        found: Tensor = model.eval()(tokens).logits
    return found
