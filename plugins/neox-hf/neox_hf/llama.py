"""LLaMA, and Mistral, which has its shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError
from neox_hf.common import demand, needed, plain_layers, rope, settings, their_logits
from neox_hf.contracts import WeightRule

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

_BUFFER = re.compile(r"\.rotary_emb\.inv_freq$")


class Llama:
    """transformers' LlamaForCausalLM. Its projections to queries, keys and values are one of ours, and so are gate and
    up; the rows keep their order within each.
    """

    model_type = "llama"
    architecture = "LlamaForCausalLM"

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        base, turned = rope(config, 1.0)
        demand(config, "hidden_act", "silu", "swish")
        hidden, heads = needed(config, "hidden_size"), needed(config, "num_attention_heads")
        if (config.get("head_dim") or hidden // heads) * heads != hidden:
            raise ConfigError(f"config.json: heads of {config['head_dim']} numbers do not make up {hidden}")
        return {
            "num-layers": needed(config, "num_hidden_layers"),
            "hidden-size": hidden,
            "num-attention-heads": heads,
            "num-kv-heads": config.get("num_key_value_heads") or heads,
            "intermediate-size": needed(config, "intermediate_size"),
            "max-position-embeddings": needed(config, "max_position_embeddings"),
            "padded-vocab-size": needed(config, "vocab_size"),
            "norm": "rmsnorm",
            "rms-norm-epsilon": config.get("rms_norm_eps", 1e-6),
            "rms-norm-epsilon-in": "mean-square",
            "pos-emb": "rotary",
            "rotary-pct": turned,
            "rotary-emb-base": base,
            "activation": "swiglu",
            "gpt-j-residual": False,
            "no-weight-tying": not config.get("tie_word_embeddings", False),
            "use-bias-in-attn-linear": config.get("attention_bias", False),
            "use-bias-in-mlp": config.get("mlp_bias", False),
            "hidden-dropout": 0.0,
            "attention-dropout": config.get("attention_dropout", 0.0),
        }

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        plain_layers(model)
        norm, position = settings(model.norm, "rmsnorm"), settings(model.position, "rotary")
        settings(model.activation, "swiglu")
        if norm["rms_norm_epsilon_in"] != "mean-square":
            raise ConfigError("rms-norm-epsilon-in: rms is another norm than that of this family")
        if model.parallel_residual:
            raise ConfigError("gpt-j-residual is something that this family does not have")
        if position["rotary_pct"] != 1.0:
            raise ConfigError("rotary-pct below 1 is something that this family does not have")
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_kv_heads or model.num_attention_heads,
            "intermediate_size": model.intermediate_size,
            "max_position_embeddings": model.max_position_embeddings,
            "hidden_act": "silu",
            "rope_theta": position["rotary_emb_base"],
            "rms_norm_eps": norm["rms_norm_epsilon"],
            "attention_bias": model.attention_bias,
            "mlp_bias": model.mlp_bias,
            "tie_word_embeddings": model.tie_embeddings,
            "attention_dropout": model.attention_dropout,
            "initializer_range": model.init_std,
        }

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        heads = model.num_attention_heads
        kv_heads = model.num_kv_heads or heads
        width = model.hidden_size // heads
        yield WeightRule("embedding.weight", ("model.embed_tokens.weight",))
        for layer in range(model.num_layers):
            ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
            yield WeightRule(f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",))
            yield WeightRule(f"{ours}.mlp_norm.weight", (f"{theirs}.post_attention_layernorm.weight",))
            for kind in ("weight", "bias") if model.attention_bias else ("weight",):
                parts = tuple(f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv")
                join, split = interleave(heads, kv_heads, width)
                yield WeightRule(f"{ours}.attention.qkv.{kind}", parts, join, split)
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
    """transformers' MistralForCausalLM, where no window limits what a token sees."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        window = config.get("sliding_window", 4096)
        if window is not None and window < needed(config, "max_position_embeddings"):
            raise ConfigError(
                f"config.json: sliding_window is {window}, and this version of neox has no sliding window",
                hint="set max_position_embeddings to the window: up to there the model is the same",
            )
        return super().keys({**config, "attention_bias": False, "mlp_bias": False})

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        if model.attention_bias or model.mlp_bias:
            raise ConfigError("biases are something that Mistral does not have")
        config = super().config(model, vocab_size)
        del config["attention_bias"], config["mlp_bias"]
        return {**config, "sliding_window": None}


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
