"""transformers' BERT, in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve
from neox_hf.api import WeightRule, demand, interleave, needed, plain_layers, settings, understood

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from neox_bert.planner import BertPlan
    from neox_core.plan.runfile import ModelPlan


class Bert:
    """BertForPreTraining, or without the head on the first token BertForMaskedLM.

    Its norms stand behind the sublayers: `apply-residual-connection-post-layernorm`. The embedding's is the first norm
    of the first layer, and that behind a layer the first norm of the next.
    """

    @understood
    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        demand(config, "position_embedding_type", "absolute")
        demand(config, "tie_word_embeddings", True)
        demand(config, "hidden_act", "gelu")
        dropout = config.get("hidden_dropout_prob", 0.1)
        whole = (config.get("architectures") or ["BertForPreTraining"])[0]
        if whole not in ("BertForPreTraining", "BertForMaskedLM"):
            hint = "save it from BertForPreTraining or BertForMaskedLM"
            raise ConfigError(f"config.json: architectures is {whole!r}, which has other heads", hint=hint)
        pairs = whole == "BertForPreTraining"
        return {
            "architecture": "bert",
            "objective": "masked-lm",
            "sentence-pairs": "next-sentence" if pairs else "none",
            "num-tokentypes": needed(config, "type_vocab_size"),
            "num-layers": needed(config, "num_hidden_layers"),
            "hidden-size": needed(config, "hidden_size"),
            "num-attention-heads": needed(config, "num_attention_heads"),
            "intermediate-size": needed(config, "intermediate_size"),
            "max-position-embeddings": needed(config, "max_position_embeddings"),
            "padded-vocab-size": needed(config, "vocab_size"),
            "norm": "layernorm",
            "layernorm-epsilon": config.get("layer_norm_eps", 1e-12),
            "activation": "erf-gelu",
            "pos-emb": "learned",
            "apply-residual-connection-post-layernorm": True,
            "hidden-dropout": dropout,
            "attention-dropout": config.get("attention_probs_dropout_prob", 0.1),
        }

    def config(self, model: ModelPlan, vocab_size: int) -> dict[str, Any]:
        if not hasattr(model, "binary_head"):  # of BertPlan, whose import every check of a config would pay for
            raise ConfigError("this family is of architecture bert")
        model = cast("BertPlan", model)
        if not model.residual_post_norm:
            raise ConfigError("apply-residual-connection-post-layernorm: false is something that BERT does not have")
        if [each.target for each in model.mixers or ()] != ["neox_bert.attention:Bidirectional"]:
            raise ConfigError("attention-config is something that BERT does not have")
        plain_layers(evolve(model, mixers=None, residual_post_norm=False))
        settings(model.position, "learned")
        settings(model.activation, "gelu", "erf-gelu")
        if not (model.tie_embeddings and model.attention_bias and model.mlp_bias):
            raise ConfigError("BERT has tied embeddings, and biases in attention and MLP")
        special = dict(zip(("cls_token_id", "sep_token_id", "mask_token_id", "pad_token_id"), _ids(model), strict=True))
        return {
            "model_type": "bert",
            "architectures": ["BertForPreTraining" if model.binary_head else "BertForMaskedLM"],
            "vocab_size": vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_attention_heads,
            "intermediate_size": model.intermediate_size,
            "max_position_embeddings": model.max_position_embeddings,
            "type_vocab_size": model.num_tokentypes,
            "hidden_act": "gelu",
            "layer_norm_eps": settings(model.norm, "layernorm")["layernorm_epsilon"],
            "hidden_dropout_prob": model.hidden_dropout,
            "attention_probs_dropout_prob": model.attention_dropout,
            "initializer_range": model.init_std,
            "pad_token_id": special["pad_token_id"],
            "sep_token_id": special["sep_token_id"],
        }

    def weights(self, model: ModelPlan) -> Iterator[WeightRule]:
        plan = cast("BertPlan", model)
        heads = plan.num_attention_heads
        qkv = interleave(heads, heads, plan.head_width)
        before, last = "bert.embeddings", plan.num_layers - 1
        yield WeightRule("embedding.weight", (f"{before}.word_embeddings.weight",))
        yield WeightRule("embedding.types", (f"{before}.token_type_embeddings.weight",))
        yield WeightRule("position.weight", (f"{before}.position_embeddings.weight",))
        for kind in ("weight", "bias"):
            yield WeightRule(f"layers.0.attention_norm.{kind}", (f"{before}.LayerNorm.{kind}",))
            for layer in range(plan.num_layers):
                ours, theirs = f"layers.{layer}", f"bert.encoder.layer.{layer}"
                parts = tuple(f"{theirs}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
                yield WeightRule(f"{ours}.attention.qkv.{kind}", parts, *qkv)
                after = "final_norm" if layer == last else f"layers.{layer + 1}.attention_norm"
                for own, name in (
                    (f"{ours}.attention.output", "attention.output.dense"),
                    (f"{ours}.mlp_norm", "attention.output.LayerNorm"),
                    (f"{ours}.mlp.up", "intermediate.dense"),
                    (f"{ours}.mlp.down", "output.dense"),
                    (after, "output.LayerNorm"),
                ):
                    yield WeightRule(f"{own}.{kind}", (f"{theirs}.{name}.{kind}",))
            predictions = "cls.predictions.transform"
            yield WeightRule(f"transform.{kind}", (f"{predictions}.dense.{kind}",))
            yield WeightRule(f"transform.norm.{kind}", (f"{predictions}.LayerNorm.{kind}",))
            if plan.binary_head:
                yield WeightRule(f"transform.pooler.{kind}", (f"bert.pooler.dense.{kind}",))
                yield WeightRule(f"transform.pair.{kind}", (f"cls.seq_relationship.{kind}",))
        yield WeightRule("transform.out_bias", ("cls.predictions.bias",))

    def ignores(self, name: str) -> bool:
        """A table of positions, and what is tied to the embedding and the bias."""
        tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
        return name == "bert.embeddings.position_ids" or name in tied

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        if find_spec("transformers") is None:
            return None
        import torch
        from transformers import BertForMaskedLM, BertForPreTraining

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        whole = BertForPreTraining if config["architectures"] == ["BertForPreTraining"] else BertForMaskedLM
        model = whole.from_pretrained(folder, dtype=torch.float32).eval()
        ends = (tokens == config.get("sep_token_id", -1)).long()
        types = (ends.cumsum(1) - ends).clamp(max=config["type_vocab_size"] - 1)
        with torch.no_grad():
            said = model(tokens, token_type_ids=types)
        found: Tensor = said.prediction_logits if whole is BertForPreTraining else said.logits
        return found


def _ids(model: BertPlan) -> tuple[int, ...]:
    from neox_bert.special import special_tokens  # may load a tokenizer

    try:
        return tuple(special_tokens(model))
    except ImportError:  # on the host of a machine without torch
        return (0, 0, 0, 0)
