"""Gemma 2 and 3, their text models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from neox_core.errors import ConfigError
from neox_hf.common import demand, needed
from neox_hf.llama import Llama
from neox_hf.rope import rope_config, rope_keys
from neox_hf.windows import FULL, SLIDING, layer_types, read_types, read_width, whole, width_of, window_keys

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan


class Gemma2(Llama):
    """transformers' Gemma2ForCausalLM: norms around the sublayers, whose weights are added to 1; soft caps; a window in
    every other layer; the embedding is multiplied by the square root of its width.
    """

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    activation = ("hidden_activation", "gelu_pytorch_tanh", "tanh-geglu")
    norms: ClassVar[Mapping[str, str]] = {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    }
    norm_place = "both"
    adds_one = True
    biases: ClassVar[tuple[str | bool, str | bool]] = ("attention_bias", False)
    tied = True
    has: ClassVar[tuple[str, ...]] = (
        *Llama.has,
        "windows",
        "norm_place",
        "attention_multiplier",
        "attention_softcap",
        "embedding_multiplier",
        "logit_softcap",
    )
    caps: ClassVar[tuple[float | None, float | None]] = (50.0, 30.0)
    period = 2
    periods: ClassVar[tuple[str, ...]] = ()
    """Keys by which config.json says another period."""

    def more_keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if config.get("use_bidirectional_attention"):
            raise ConfigError("config.json: use_bidirectional_attention, and decoders see what is before a token")
        config.get("hidden_act")  # older files have the activation by this name too, and transformers ignores it
        scale = float(config.get("query_pre_attn_scalar", 256))
        keys: dict[str, Any] = {
            "attention-multiplier": scale**-0.5,
            "embedding-multiplier": needed(config, "hidden_size") ** 0.5,
            "attention-softcap": config.get("attn_logit_softcapping", self.caps[0]),
            "logit-softcap": config.get("final_logit_softcapping", self.caps[1]),
            **window_keys(read_width(config, 4096), self.types(config)),
        }
        if "head_dim" not in config:
            raise ConfigError("config.json: head_dim is missing")
        return {key: value for key, value in keys.items() if value is not None}

    def types(self, config: Mapping[str, Any]) -> Sequence[str]:
        """The type of each layer: every `period`-th sees all tokens, where config.json does not list them."""
        layers, period = needed(config, "num_hidden_layers"), self.period
        written = read_types(config, [FULL] * layers) if config.get("layer_types") is not None else None
        for key in ("sliding_window_pattern", "_sliding_window_pattern"):
            if (each := config.get(key)) is not None and written is None:
                if key not in self.periods:
                    demand(config, key, period)
                elif (period := whole(key, each)) < 1:
                    raise ConfigError(f"config.json: {key} is {each}, and has to be 1 or more")
        return [SLIDING if (layer + 1) % period else FULL for layer in range(layers)] if written is None else written

    def more_config(self, model: GPTPlan) -> dict[str, Any]:
        if model.embedding_multiplier != model.hidden_size**0.5:
            raise ConfigError("embedding-multiplier is not the square root of hidden-size, which Gemma has")
        scale = model.head_width if model.attention_multiplier is None else round(model.attention_multiplier**-2)
        if model.attention_multiplier not in (None, float(scale) ** -0.5):
            raise ConfigError("attention-multiplier is not a whole number to the power of -1/2, which Gemma has")
        return {
            "query_pre_attn_scalar": scale,
            "attn_logit_softcapping": model.attention_softcap,
            "final_logit_softcapping": model.logit_softcap,
            "sliding_window": width_of(model) or 4096,
            "layer_types": layer_types(model),
        }


class Gemma3(Gemma2):
    """transformers' Gemma3ForCausalLM: norms of queries and keys by head, another base of positions in windows."""

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    qk_norm = "head"
    has: ClassVar[tuple[str, ...]] = (*Gemma2.has, "qk_norm")
    caps: ClassVar[tuple[float | None, float | None]] = (None, None)
    period = 6
    periods: ClassVar[tuple[str, ...]] = ("sliding_window_pattern",)

    def positions(self, config: Mapping[str, Any]) -> dict[str, Any]:
        written = config.get("rope_parameters") or {}
        if not isinstance(written, dict) or set(written) - {FULL, SLIDING}:
            raise ConfigError("config.json: rope_parameters has something else than the two kinds of layers")
        if not written:  # the older spelling
            base = config.get("rope_local_base_freq", 10000.0)
            keys = rope_keys({"rope_theta": 1e6, **_only(config, "rope_theta", "rope_scaling")}, 1.0)
        else:
            for key in ("rope_local_base_freq", "rope_theta", "rope_scaling"):
                demand(config, key, None)
            in_windows = rope_keys({}, 1.0, written.get(SLIDING) or {})
            base = in_windows["rotary-emb-base"]
            if "rotary-scaling" in in_windows or in_windows["rotary-pct"] != 1.0:
                raise ConfigError("config.json: scaled rotary positions in windows, which neox does not have")
            keys = rope_keys({"rope_theta": 1e6}, 1.0, written.get(FULL) or {})
        return {**keys, "rotary-emb-base-in-windows": float(base)} if SLIDING in self.types(config) else keys

    def positions_out(self, model: GPTPlan, position: Mapping[str, Any]) -> dict[str, Any]:
        full = rope_config(model, position)
        if "max_position_embeddings" in full:
            raise ConfigError("rotary-scaling dynamic is something that this family does not have")
        scaling = full.get("rope_scaling") or {"rope_type": "default"}
        base = position.get("rotary_emb_base_in_windows") or position["rotary_emb_base"]
        return {
            "rope_parameters": {
                FULL: {**scaling, "rope_theta": position["rotary_emb_base"]},
                SLIDING: {"rope_type": "default", "rope_theta": base},
            }
        }


def _only(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: config[key] for key in keys if config.get(key) is not None}
