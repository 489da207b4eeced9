"""LLaMA, and what the families of its form have in common; Mistral."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from neox_core.errors import ConfigError
from neox_hf.common import demand, needed, plain_layers, same, settings, their_logits
from neox_hf.contracts import WeightRule
from neox_hf.rope import rope_config, rope_keys
from neox_hf.understood import understood
from neox_hf.windows import FULL, SLIDING, layer_types, read_width, width_of, window_keys

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

_BUFFER = re.compile(r"\.rotary_emb\.inv_freq$")


class Llama:
    """transformers' LlamaForCausalLM. Its projections to queries, keys and values are one of ours, and so are gate and
    up; the rows keep their order within each.

    norms: ours and theirs. qk_norm: `qk-norm` of the family. biases: whether attention and MLP have biases, by the name
    of a key or as a value; its output projection has those of attention or none. has: as of `plain_layers`.
    """

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    activation = ("hidden_act", "silu", "swiglu")
    norms: ClassVar[Mapping[str, str]] = {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    }
    norm_epsilon = 1e-6
    norm_place: str | None = None
    adds_one = False
    qk_norm: str | None = None
    biases: ClassVar[tuple[str | bool, str | bool]] = ("attention_bias", "mlp_bias")
    output_bias = True
    tied = False
    has: ClassVar[tuple[str, ...]] = ("head_dim", "num_kv_heads")

    @understood
    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        hidden, heads = needed(config, "hidden_size"), needed(config, "num_attention_heads")
        key, theirs, ours = self.activation
        demand(config, key, theirs, *(("swish",) if theirs == "silu" else ()))
        attention, mlp = (config.get(each, False) if isinstance(each, str) else each for each in self.biases)
        keys = {
            "num-layers": needed(config, "num_hidden_layers"),
            "hidden-size": hidden,
            "num-attention-heads": heads,
            "num-kv-heads": config.get("num_key_value_heads") or heads,
            "intermediate-size": needed(config, "intermediate_size"),
            "max-position-embeddings": needed(config, "max_position_embeddings"),
            "padded-vocab-size": needed(config, "vocab_size"),
            "norm": "rmsnorm",
            "rms-norm-epsilon": config.get("rms_norm_eps", self.norm_epsilon),
            "rms-norm-epsilon-in": "mean-square",
            "activation": ours,
            "gpt-j-residual": False,
            "no-weight-tying": not config.get("tie_word_embeddings", self.tied),
            "use-bias-in-attn-linear": attention,
            "use-bias-in-mlp": mlp,
            "hidden-dropout": 0.0,
            "attention-dropout": config.get("attention_dropout", 0.0),
        }
        if (width := config.get("head_dim")) and width * heads != hidden:
            keys["head-dim"] = width
        if attention and not self.output_bias:
            keys["use-bias-in-attn-output"] = False
        if self.qk_norm:
            keys["qk-norm"] = self.qk_norm
        if self.norm_place:
            keys["norm-place"] = self.norm_place
        if self.adds_one:
            keys["rms-norm-adds-one"] = True
        return {**keys, **self.positions(config), **self.more_keys(config)}

    def positions(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Our keys about positions, of a config.json."""
        return rope_keys(config, 1.0)

    def more_keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a family has besides."""
        return {}

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        plain_layers(model, **dict.fromkeys(self.has, True))
        norm, position = settings(model.norm, "rmsnorm"), settings(model.position, "rotary")
        key, theirs, ours = self.activation
        settings(model.activation, ours)
        same("rms-norm-epsilon-in", norm["rms_norm_epsilon_in"], "mean-square")
        same("rms-norm-adds-one", norm.get("rms_norm_adds_one", False), self.adds_one)
        same("qk-norm", model.qk_norm, self.qk_norm)
        same("norm-place", model.norm_place or "before", self.norm_place or "before")
        same("rotary-pct", position["rotary_pct"], 1.0)
        config = {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_kv_heads or model.num_attention_heads,
            "head_dim": model.head_width,
            "intermediate_size": model.intermediate_size,
            "max_position_embeddings": model.max_position_embeddings,
            key: theirs,
            "rms_norm_eps": norm["rms_norm_epsilon"],
            "tie_word_embeddings": model.tie_embeddings,
            "attention_dropout": model.attention_dropout,
            "initializer_range": model.init_std,
            **self.biases_out(model),
            **self.positions_out(model, position),
        }
        return {**config, **self.more_config(model)}

    def biases_out(self, model: GPTPlan) -> dict[str, Any]:
        """The keys of config.json about biases. Raises ConfigError for those that the family lacks."""
        config = {}
        ends_in_bias = model.attention_bias if model.attention_output_bias is None else model.attention_output_bias
        same("use-bias-in-attn-output", ends_in_bias, model.attention_bias and self.output_bias)
        has = {"use-bias-in-attn-linear": model.attention_bias, "use-bias-in-mlp": model.mlp_bias}
        for theirs, (key, value) in zip(self.biases, has.items(), strict=True):
            if isinstance(theirs, str):
                config[theirs] = value
            else:
                same(key, value, theirs)
        return config

    def positions_out(self, model: GPTPlan, position: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of config.json about positions. Raises ConfigError for those that the family lacks."""
        if position.get("rotary_emb_base_in_windows") is not None:
            raise ConfigError("rotary-emb-base-in-windows is something that this family does not have")
        return rope_config(model, position)

    def more_config(self, model: GPTPlan) -> dict[str, Any]:
        """The keys of config.json that only this family has."""
        return {}

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        heads = model.num_attention_heads
        kv_heads, width = model.num_kv_heads or heads, model.head_width
        yield WeightRule("embedding.weight", ("model.embed_tokens.weight",))
        for layer in range(model.num_layers):
            ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
            for own, name in self.norms.items():
                yield WeightRule(f"{ours}.{own}.weight", (f"{theirs}.{name}.weight",))
            for own, name in (("query", "q"), ("key", "k")) if self.qk_norm else ():
                yield WeightRule(f"{ours}.attention.qk_norm.{own}.weight", (f"{theirs}.self_attn.{name}_norm.weight",))
            for kind in ("weight", "bias") if model.attention_bias else ("weight",):
                parts = tuple(f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv")
                join, split = interleave(heads, kv_heads, width)
                yield WeightRule(f"{ours}.attention.qkv.{kind}", parts, join, split)
                if kind == "weight" or self.output_bias:
                    yield WeightRule(f"{ours}.attention.output.{kind}", (f"{theirs}.self_attn.o_proj.{kind}",))
            for kind in ("weight", "bias") if model.mlp_bias else ("weight",):
                both = (f"{theirs}.mlp.up_proj.{kind}", f"{theirs}.mlp.gate_proj.{kind}")
                yield WeightRule(f"{ours}.mlp.up.{kind}", both, _stack, _halves)
                yield WeightRule(f"{ours}.mlp.down.{kind}", (f"{theirs}.mlp.down_proj.{kind}",))
        yield WeightRule("final_norm.weight", ("model.norm.weight",))
        if not model.tie_embeddings:
            yield WeightRule("head.weight", ("lm_head.weight",))

    def ignores(self, name: str) -> bool:
        """Wavelengths, which older files hold."""
        return _BUFFER.search(name) is not None

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        return their_logits(folder, tokens)


class Mistral(Llama):
    """transformers' MistralForCausalLM: a window in all layers, or in none."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    biases: ClassVar[tuple[str | bool, str | bool]] = (False, False)
    has: ClassVar[tuple[str, ...]] = (*Llama.has, "windows")

    def more_keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        width = read_width(config, 4096)
        return window_keys(width, [FULL if width is None else SLIDING])

    def more_config(self, model: GPTPlan) -> dict[str, Any]:
        if len(set(layer_types(model))) > 1:
            raise ConfigError("a window in some layers is something that Mistral does not have")
        return {"sliding_window": width_of(model)}


def interleave(
    heads: int, kv_heads: int, width: int
) -> tuple[Callable[[Sequence[Tensor]], Tensor], Callable[[Tensor], Sequence[Tensor]]]:
    """Rows of queries [heads * width, ...], keys and values [kv_heads * width, ...] <-> for each key its queries, the
    key and its value.
    """
    group = heads // kv_heads

    def join(theirs: Sequence[Tensor]) -> Tensor:
        import torch

        parts = [part.reshape(kv_heads, -1, width, *part.shape[1:]) for part in theirs]
        return torch.cat(parts, 1).reshape(-1, *theirs[0].shape[1:])

    def split(ours: Tensor) -> Sequence[Tensor]:
        by_key = ours.reshape(kv_heads, group + 2, width, *ours.shape[1:])
        return [part.reshape(-1, *ours.shape[1:]) for part in by_key.split((group, 1, 1), 1)]

    return join, split


def _stack(theirs: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.cat(list(theirs))


def _halves(ours: Tensor) -> Sequence[Tensor]:
    halves: Sequence[Tensor] = ours.chunk(2)
    return halves
