"""GPT-NeoX: Pythia and GPT-NeoX-20B."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError
from neox_hf.common import demand, needed, plain_layers, settings, their_logits
from neox_hf.contracts import WeightRule
from neox_hf.rope import rope_config, rope_keys
from neox_hf.understood import understood

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "openai-gelu",
    "gelu_fast": "openai-gelu",
    "gelu_pytorch_tanh": "openai-gelu",
}
LAYER = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.output": "attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
_BUFFER = re.compile(r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$")


class GPTNeoX:
    """transformers' GPTNeoXForCausalLM. Its fused projection has our order of rows, so every weight fits as it is."""

    @understood
    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        activation = demand(config, "hidden_act", *ACTIVATIONS)
        return {
            "num-layers": needed(config, "num_hidden_layers"),
            "hidden-size": needed(config, "hidden_size"),
            "num-attention-heads": needed(config, "num_attention_heads"),
            "intermediate-size": needed(config, "intermediate_size"),
            "max-position-embeddings": needed(config, "max_position_embeddings"),
            "padded-vocab-size": needed(config, "vocab_size"),
            "norm": "layernorm",
            "layernorm-epsilon": config.get("layer_norm_eps", 1e-5),
            "activation": ACTIVATIONS[activation],
            "gpt-j-residual": demand(config, "use_parallel_residual", True, False),
            "no-weight-tying": not config.get("tie_word_embeddings", False),
            "use-bias-in-attn-linear": config.get("attention_bias", True),
            "hidden-dropout": config.get("hidden_dropout", 0.0),
            "attention-dropout": config.get("attention_dropout", 0.0),
            **rope_keys(config, 0.25),
        }

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        plain_layers(model, parallel_residual=True)
        norm, position = settings(model.norm, "layernorm"), settings(model.position, "rotary")
        settings(model.activation, "gelu", "openai-gelu", "erf-gelu")
        if not model.mlp_bias:
            raise ConfigError("use-bias-in-mlp: false is something that GPT-NeoX in transformers does not have")
        rope = rope_config(model, position)
        return {
            "model_type": "gpt_neox",
            "architectures": ["GPTNeoXForCausalLM"],
            "vocab_size": vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_attention_heads,
            "intermediate_size": model.intermediate_size,
            "max_position_embeddings": model.max_position_embeddings,
            "hidden_act": "gelu_new" if model.activation.name == "openai-gelu" else "gelu",
            "rotary_pct": position["rotary_pct"],
            "rotary_emb_base": rope.pop("rope_theta"),
            "layer_norm_eps": norm["layernorm_epsilon"],
            "use_parallel_residual": model.parallel_residual,
            "attention_bias": model.attention_bias,
            "tie_word_embeddings": model.tie_embeddings,
            "hidden_dropout": model.hidden_dropout,
            "attention_dropout": model.attention_dropout,
            "initializer_range": model.init_std,
            **rope,
        }

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        yield WeightRule("embedding.weight", ("gpt_neox.embed_in.weight",))
        for layer in range(model.num_layers):
            for ours, theirs in LAYER.items():
                biased = model.attention_bias or ours not in ("attention.qkv", "attention.output")
                for kind in ("weight", "bias") if biased else ("weight",):
                    yield WeightRule(f"layers.{layer}.{ours}.{kind}", (f"gpt_neox.layers.{layer}.{theirs}.{kind}",))
        for kind in ("weight", "bias"):
            yield WeightRule(f"final_norm.{kind}", (f"gpt_neox.final_layer_norm.{kind}",))
        if not model.tie_embeddings:
            yield WeightRule("head.weight", ("embed_out.weight",))

    def ignores(self, name: str) -> bool:
        """Causal masks and wavelengths, which older files hold."""
        return _BUFFER.search(name) is not None

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        return their_logits(folder, tokens)
