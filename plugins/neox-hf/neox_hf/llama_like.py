"""Families of LLaMA's form: Qwen 2 and 3, OLMo 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from neox_core.errors import ConfigError
from neox_hf.common import needed
from neox_hf.llama import Llama
from neox_hf.windows import FULL, SLIDING, layer_types, read_types, read_width, whole, width_of, window_keys

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan


class Qwen2(Llama):
    """transformers' Qwen2ForCausalLM: biases of queries, keys and values alone; a window in some layers, or in none."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    biases: ClassVar[tuple[str | bool, str | bool]] = (True, False)
    output_bias = False
    has: ClassVar[tuple[str, ...]] = (*Llama.has, "windows", "attention_output_bias")

    def more_keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        on, width = config.get("use_sliding_window", False), read_width(config, 4096)
        if not isinstance(on, bool):
            raise ConfigError(f"config.json: use_sliding_window is {on!r}, and neither true nor false")
        width = width if on else None  # files of models without a window have a width too
        first = whole("max_window_layers", config.get("max_window_layers", 28))
        default = [
            SLIDING if width is not None and layer >= first else FULL
            for layer in range(needed(config, "num_hidden_layers"))
        ]
        return window_keys(width, read_types(config, default))

    def more_config(self, model: GPTPlan) -> dict[str, Any]:
        types = layer_types(model)
        first = types.index(SLIDING) if SLIDING in types else model.num_layers
        windows = {"use_sliding_window": SLIDING in types, "sliding_window": width_of(model)}
        return {**windows, "max_window_layers": first, "layer_types": types}


class Qwen3(Qwen2):
    """transformers' Qwen3ForCausalLM: norms of queries and keys by head."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    qk_norm = "head"
    biases: ClassVar[tuple[str | bool, str | bool]] = ("attention_bias", False)
    output_bias = True
    has: ClassVar[tuple[str, ...]] = (*Llama.has, "windows", "qk_norm")


class Olmo2(Llama):
    """transformers' Olmo2ForCausalLM: norms after the sublayers, and of all heads of queries and keys."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    norms: ClassVar[Mapping[str, str]] = {
        "attention_post_norm": "post_attention_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    }
    norm_epsilon = 1e-5
    norm_place = "after"
    qk_norm = "all"
    biases: ClassVar[tuple[str | bool, str | bool]] = ("attention_bias", False)
    has: ClassVar[tuple[str, ...]] = (*Llama.has, "qk_norm", "norm_place")
