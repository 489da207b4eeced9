"""Decoders that transformers has no class for: their code goes with the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError
from neox_hf.common import demand, needed, plain_layers, settings, their_logits
from neox_hf.contracts import WeightRule
from neox_hf.understood import understood

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

CODE = "modeling_neox.py"
PLAIN = {"gelu": "gelu", "erf-gelu": "gelu", "openai-gelu": "gelu_new", "relu": "relu", "silu": "silu"}
GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "glu": "sigmoid", "bilinear": "identity"}
BACK = {(False, theirs): ours for ours, theirs in PLAIN.items() if ours != "erf-gelu"}
BACK |= {(True, theirs): ours for ours, theirs in GATED.items()}


class Neox:
    """A decoder with its own code in `modeling_neox.py`. Weights have our names."""

    @understood
    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        hidden, heads = needed(config, "hidden_size"), needed(config, "num_attention_heads")
        act = bool(needed(config, "gated")), needed(config, "hidden_act")
        if act not in BACK:
            raise ConfigError(f"config.json: hidden_act is {act[1]!r}, which this version of neox does not have")
        norm, turned = demand(config, "norm", "layernorm", "rmsnorm"), needed(config, "rotary_dim")
        base, eps_in = needed(config, "rotary_base"), demand(config, "rms_norm_eps_in", "rms", "mean-square")
        learned = config.get("learned_positions")
        epsilon = {"layernorm": "layernorm-epsilon", "rmsnorm": "rms-norm-epsilon"}[norm]
        keys = {
            "num-layers": needed(config, "num_hidden_layers"),
            "hidden-size": hidden,
            "num-attention-heads": heads,
            "num-kv-heads": needed(config, "num_key_value_heads"),
            "intermediate-size": needed(config, "intermediate_size"),
            "max-position-embeddings": needed(config, "max_position_embeddings"),
            "padded-vocab-size": needed(config, "vocab_size"),
            "norm": norm,
            epsilon: needed(config, "norm_eps"),
            "activation": BACK[act],
            "gpt-j-residual": needed(config, "use_parallel_residual"),
            "gpt-j-tied": needed(config, "shared_norm"),
            "no-weight-tying": not needed(config, "tie_word_embeddings"),
            "use-bias-in-attn-linear": needed(config, "attention_bias"),
            "use-bias-in-mlp": needed(config, "mlp_bias"),
            "hidden-dropout": 0.0,
            "attention-dropout": 0.0,
        }
        width = config.get("head_dim") or hidden // heads
        if width * heads != hidden:
            keys["head-dim"] = width
        if norm == "rmsnorm":
            keys["rms-norm-epsilon-in"] = eps_in
        if turned:
            share = {"rotary-pct": turned / width, "rotary-emb-base": base}
            return {**keys, "pos-emb": "rotary", **share}
        return {**keys, "pos-emb": "learned" if learned else "none"}

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        plain_layers(model, shared_norm=True, parallel_residual=True, num_kv_heads=True, head_dim=True)
        norm = settings(model.norm, "layernorm", "rmsnorm")
        position = settings(model.position, "rotary", "learned", "none")
        settings(model.activation, *PLAIN, *GATED)
        if position.get("rotary_scaling", "none") != "none" or norm.get("rms_norm_adds_one", False):
            raise ConfigError("rotary-scaling and rms-norm-adds-one are not in the code that goes with the weights")
        gated = model.activation.name in GATED
        rms = model.norm.name == "rmsnorm"
        head_dim = model.head_width
        return {
            "model_type": "neox",
            "architectures": ["NeoxForCausalLM"],
            "auto_map": {
                "AutoConfig": "modeling_neox.NeoxConfig",
                "AutoModelForCausalLM": "modeling_neox.NeoxForCausalLM",
            },
            "vocab_size": vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_kv_heads or model.num_attention_heads,
            "head_dim": head_dim,
            "intermediate_size": model.intermediate_size,
            "max_position_embeddings": model.max_position_embeddings,
            "hidden_act": (GATED if gated else PLAIN)[model.activation.name],
            "gated": gated,
            "norm": model.norm.name,
            "norm_eps": norm["rms_norm_epsilon" if rms else "layernorm_epsilon"],
            "rms_norm_eps_in": norm.get("rms_norm_epsilon_in", "rms"),
            "rotary_dim": int(head_dim * position["rotary_pct"]) if model.position.name == "rotary" else 0,
            "rotary_base": position.get("rotary_emb_base", 10000.0),
            "learned_positions": model.position.name == "learned",
            "use_parallel_residual": model.parallel_residual,
            "shared_norm": model.shared_norm,
            "attention_bias": model.attention_bias,
            "mlp_bias": model.mlp_bias,
            "tie_word_embeddings": model.tie_embeddings,
            "initializer_range": model.init_std,
        }

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        norms = ("weight", "bias") if model.norm.name == "layernorm" else ("weight",)
        names = ["embedding.weight", *(["position.weight"] if model.position.name == "learned" else [])]
        attention, mlp = (
            ("weight", "bias") if biased else ("weight",) for biased in (model.attention_bias, model.mlp_bias)
        )
        parts = {"attention_norm": norms, "attention.qkv": attention, "attention.output": attention}
        parts |= {} if model.shared_norm else {"mlp_norm": norms}
        parts |= {"mlp.up": mlp, "mlp.down": mlp}
        for layer in range(model.num_layers):
            names += [f"layers.{layer}.{part}.{kind}" for part, kinds in parts.items() for kind in kinds]
        for name in (*names, *(f"final_norm.{kind}" for kind in norms)):
            yield WeightRule(name, (f"model.{name}",))
        if not model.tie_embeddings:
            yield WeightRule("head.weight", ("lm_head.weight",))

    def ignores(self, name: str) -> bool:
        return False

    def files(self) -> Mapping[str, str]:
        """The code of the model, which transformers loads where it is trusted."""
        return {CODE: Path(__file__).with_name(CODE).read_text(encoding="utf-8")}

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        """By our own copy of the code, not by the one in the folder."""
        return their_logits(folder, tokens, own_code=True)
