"""Mixtral: Mistral with experts in place of the MLP."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from neox_core.errors import CheckpointError, ConfigError
from neox_core.untrusted import read_object
from neox_hf.common import demand, needed, settings, their_logits
from neox_hf.contracts import WeightRule
from neox_hf.llama import Mistral
from neox_hf.windows import FULL, SLIDING, read_width, window_keys

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

THETA = 1000000.0
"""The base of rotary positions that transformers takes where config.json has none."""
PARTS = {"gate.weight": (), "experts.gate_up_proj": ("w1", "w3"), "experts.down_proj": ("w2",)}
_FUSED = re.compile(r"(.*)\.mlp\.(gate\.weight|experts\.gate_up_proj|experts\.down_proj)")


class Mixtral(Mistral):
    """transformers' MixtralForCausalLM. The matrices of all experts of a layer are one parameter of ours."""

    model_type = "mixtral"
    architecture = "MixtralForCausalLM"
    norm_epsilon = 1e-5

    def positions(self, config: Mapping[str, Any]) -> dict[str, Any]:
        keys, written = super().positions(config), config.get("rope_parameters") or {}
        if config.get("rope_theta") is None and written.get("rope_theta") is None:
            keys["rotary-emb-base"] = THETA
        return keys

    def more_keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        demand(config, "router_jitter_noise", 0.0)
        demand(config, "output_router_logits", False, True)
        experts, layers = config.get("num_local_experts", 8), needed(config, "num_hidden_layers")
        if experts == 1:
            raise ConfigError("config.json: num_local_experts is 1, which is a model without experts")
        width = read_width(config, None)
        return {
            **window_keys(width, [FULL if width is None else SLIDING]),
            "num-kv-heads": config.get("num_key_value_heads", 8) or needed(config, "num_attention_heads"),
            "mlp-type": "moe",
            "moe-num-experts": experts,
            "moe-top-k": config.get("num_experts_per_tok", 2),
            "moe-router-type": "topk",
            "moe-normalize-expert-weights": True,
            # theirs takes the mean over the layers, ours the sum
            "moe-loss-coeff": config.get("router_aux_loss_coef", 0.001) / layers,
        }

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        if model.feed_forwards is None or len(model.feed_forwards) > 1:
            raise ConfigError("mlp-type: moe in all layers is what Mixtral has")
        moe = settings(model.feed_forwards[0], "moe")
        if moe["moe_num_experts"] == 1:
            raise ConfigError("a model with one expert has MLPs, which Mixtral does not have")
        if moe["moe_router_type"] != "topk" or not moe["moe_normalize_expert_weights"]:
            raise ConfigError("Mixtral has moe-router-type: topk and moe-normalize-expert-weights: true")
        coefficient = moe["moe_loss_coeff"]
        told = {} if coefficient is None else {"router_aux_loss_coef": coefficient * model.num_layers}
        return {
            **super().config(evolve(model, feed_forwards=None, mlp_bias=False), vocab_size),
            "num_local_experts": moe["moe_num_experts"],
            "num_experts_per_tok": moe["moe_top_k"],
            "router_jitter_noise": 0.0,
            **told,
        }

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        experts = model.used_feed_forwards[0].settings["moe_num_experts"]
        for rule in super().weights(evolve(model, mlp_bias=False)):
            ours, _, last = rule.ours.partition(".mlp.")
            if not last:
                yield rule
                continue
            theirs = f"model.{ours}.block_sparse_moe"
            if last == "up.weight":
                yield WeightRule(f"{ours}.mlp.router.weight", (f"{theirs}.gate.weight",))
                yield WeightRule(rule.ours, _names(theirs, experts, ("w3", "w1")), _pairs, _of_pairs)
            else:
                yield WeightRule(rule.ours, _names(theirs, experts, ("w2",)), _stacked, _of_stack)

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        experts = read_object(folder / "config.json", CheckpointError)["num_local_experts"]

        def joined(name: str) -> tuple[Sequence[str], Callable[[Sequence[Tensor]], Tensor]] | None:
            """A parameter of transformers 5, which joins what the files have for each expert."""
            found = _FUSED.fullmatch(name)
            if found is None:
                return None
            theirs, part = f"{found[1]}.block_sparse_moe", found[2]
            if part == "gate.weight":
                return (f"{theirs}.gate.weight",), lambda parts: parts[0]
            return _names(theirs, experts, PARTS[part]), _rows if len(PARTS[part]) == 2 else _stacked

        return their_logits(folder, tokens, joined=joined)


def _names(theirs: str, experts: int, parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{theirs}.experts.{expert}.{part}.weight" for expert in range(experts) for part in parts)


def _stacked(theirs: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.stack(list(theirs))


def _of_stack(ours: Tensor) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = ours.unbind()
    return parts


def _pairs(theirs: Sequence[Tensor]) -> Tensor:
    """Value and gate of each expert: [experts, 2, width, hidden]."""
    return _stacked(theirs).unflatten(0, (-1, 2))


def _of_pairs(ours: Tensor) -> Sequence[Tensor]:
    return _of_stack(ours.flatten(0, 1))


def _rows(theirs: Sequence[Tensor]) -> Tensor:
    """Gate over value of each expert: [experts, 2 * width, hidden]."""
    return _pairs(theirs).flatten(1, 2)
