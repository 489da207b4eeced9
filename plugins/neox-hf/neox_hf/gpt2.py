"""GPT-2, with learned positions, and GPT-J."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from neox_core.errors import ConfigError
from neox_hf.common import demand, needed, plain_layers, settings, their_logits
from neox_hf.contracts import WeightRule
from neox_hf.llama import interleave
from neox_hf.understood import understood

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

ACTIVATIONS = {"gelu_new": "openai-gelu", "gelu_pytorch_tanh": "openai-gelu", "gelu": "gelu", "relu": "relu"}
OURS = {"openai-gelu": "gelu_new", "gelu": "gelu", "erf-gelu": "gelu", "relu": "relu"}
_BUFFER = re.compile(r"\.(attn\.(bias|masked_bias|embed_positions))$")


class GPT2:
    """transformers' GPT2LMHeadModel. Its weights are [inputs, outputs], and its rows queries, keys, then values."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    has: ClassVar[tuple[str, ...]] = ()

    @understood
    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        for key, only in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
            demand(config, key, only)
        config.get("reorder_and_upcast_attn")  # of half precision alone
        return self._common(config) | {
            "pos-emb": "learned",
            "no-weight-tying": not config.get("tie_word_embeddings", True),
        }

    def _common(self, config: Mapping[str, Any]) -> dict[str, Any]:
        hidden, dropout = needed(config, "n_embd"), config.get("resid_pdrop", 0.1)
        demand(config, "embd_pdrop", dropout)
        return {
            "num-layers": needed(config, "n_layer"),
            "hidden-size": hidden,
            "num-attention-heads": needed(config, "n_head"),
            "intermediate-size": config.get("n_inner") or 4 * hidden,
            "max-position-embeddings": needed(config, "n_positions"),
            "padded-vocab-size": needed(config, "vocab_size"),
            "norm": "layernorm",
            "layernorm-epsilon": config.get("layer_norm_epsilon", 1e-5),
            "activation": ACTIVATIONS[demand(config, "activation_function", *ACTIVATIONS)],
            "gpt-j-residual": False,
            "hidden-dropout": dropout,
            "attention-dropout": config.get("attn_pdrop", 0.1),
        }

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        settings(model.position, "learned")
        if not model.attention_bias:
            raise ConfigError("use-bias-in-attn-linear: false is something that GPT-2 does not have")
        return self._common_config(model, vocab_size) | {"tie_word_embeddings": model.tie_embeddings}

    def _common_config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        plain_layers(model, **dict.fromkeys(self.has, True))
        settings(model.activation, *OURS)
        if not model.mlp_bias:
            raise ConfigError("use-bias-in-mlp: false is something that this family does not have")
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": vocab_size,
            "n_positions": model.max_position_embeddings,
            "n_embd": model.hidden_size,
            "n_layer": model.num_layers,
            "n_head": model.num_attention_heads,
            "n_inner": model.intermediate_size,
            "activation_function": OURS[model.activation.name],
            "layer_norm_epsilon": settings(model.norm, "layernorm")["layernorm_epsilon"],
            "resid_pdrop": model.hidden_dropout,
            "embd_pdrop": model.hidden_dropout,
            "attn_pdrop": model.attention_dropout,
            "initializer_range": model.init_std,
        }

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        heads, width = model.num_attention_heads, model.head_width
        join, split = interleave(heads, heads, width)
        yield WeightRule("embedding.weight", ("transformer.wte.weight",))
        yield WeightRule("position.weight", ("transformer.wpe.weight",))
        for layer in range(model.num_layers):
            ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
            for kind in ("weight", "bias"):
                flip = _flipped if kind == "weight" else _as_it_is
                qkv = f"{theirs}.attn.c_attn.{kind}"
                yield WeightRule(
                    f"{ours}.attention.qkv.{kind}", (qkv,), _split_in(join, flip), _joined_out(split, flip)
                )
                for own, name in (
                    ("attention.output", "attn.c_proj"),
                    ("mlp.up", "mlp.c_fc"),
                    ("mlp.down", "mlp.c_proj"),
                ):
                    yield WeightRule(f"{ours}.{own}.{kind}", (f"{theirs}.{name}.{kind}",), *_alone(flip))
                for own, name in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
                    yield WeightRule(f"{ours}.{own}.{kind}", (f"{theirs}.{name}.{kind}",))
        for kind in ("weight", "bias"):
            yield WeightRule(f"final_norm.{kind}", (f"transformer.ln_f.{kind}",))
        if not model.tie_embeddings:
            yield WeightRule("head.weight", ("lm_head.weight",))

    def ignores(self, name: str) -> bool:
        """Causal masks and tables of positions, which older files hold."""
        return _BUFFER.search(name) is not None

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        return their_logits(folder, tokens)


class GPTJ(GPT2):
    """transformers' GPTJForCausalLM. It turns neighbours of a head, dimensions 2 i and 2 i + 1, and ours are turned in
    halves: the rows of queries and keys change places. One norm for both sublayers; biases in MLP and head alone.
    """

    model_type = "gptj"
    architecture = "GPTJForCausalLM"
    has: ClassVar[tuple[str, ...]] = ("shared_norm", "parallel_residual", "head_bias")

    @understood
    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        demand(config, "tie_word_embeddings", False)
        keys = self._common({"resid_pdrop": 0.0, "attn_pdrop": 0.0, **_read(config)})
        width = keys["hidden-size"] // keys["num-attention-heads"]
        return keys | {
            "pos-emb": "rotary",
            "rotary-pct": (config.get("rotary_dim", 64) or width) / width,
            "gpt-j-residual": True,
            "gpt-j-tied": True,
            "no-weight-tying": True,
            "use-bias-in-attn-linear": False,
            "use-bias-in-head": True,
        }

    def config(self, model: GPTPlan, vocab_size: int) -> dict[str, Any]:
        position = settings(model.position, "rotary")
        if not (model.shared_norm and model.head_bias) or model.attention_bias:
            raise ConfigError("GPT-J has gpt-j-tied and use-bias-in-head, and not use-bias-in-attn-linear")
        if position.get("rotary_scaling", "none") != "none" or position["rotary_emb_base"] != 10000.0:
            raise ConfigError("rotary-scaling and rotary-emb-base are something that GPT-J does not have")
        turned = int(model.head_width * position["rotary_pct"])
        return self._common_config(model, vocab_size) | {"rotary_dim": turned, "tie_word_embeddings": False}

    def weights(self, model: GPTPlan) -> Iterator[WeightRule]:
        heads, width = model.num_attention_heads, model.head_width
        turned = int(width * model.position.settings["rotary_pct"])
        join, split = interleave(heads, heads, width)
        order = [*range(0, turned, 2), *range(1, turned, 2), *range(turned, width)]
        back = [order.index(place) for place in range(width)]

        def joined(theirs: Sequence[Tensor]) -> Tensor:
            return join([*(_ordered(each, width, order) for each in theirs[:2]), theirs[2]])

        def parts(ours: Tensor) -> Sequence[Tensor]:
            query, key, value = split(ours)
            return [_ordered(query, width, back), _ordered(key, width, back), value]

        yield WeightRule("embedding.weight", ("transformer.wte.weight",))
        for layer in range(model.num_layers):
            ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
            qkv = tuple(f"{theirs}.attn.{part}_proj.weight" for part in "qkv")
            yield WeightRule(f"{ours}.attention.qkv.weight", qkv, joined, parts)
            yield WeightRule(f"{ours}.attention.output.weight", (f"{theirs}.attn.out_proj.weight",))
            for kind in ("weight", "bias"):
                for own, name in (("attention_norm", "ln_1"), ("mlp.up", "mlp.fc_in"), ("mlp.down", "mlp.fc_out")):
                    yield WeightRule(f"{ours}.{own}.{kind}", (f"{theirs}.{name}.{kind}",))
        for kind in ("weight", "bias"):
            yield WeightRule(f"final_norm.{kind}", (f"transformer.ln_f.{kind}",))
            yield WeightRule(f"head.{kind}", (f"lm_head.{kind}",))


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "vocab_size", "layer_norm_epsilon")
    more = ("activation_function", "resid_pdrop", "embd_pdrop", "attn_pdrop")
    return {name: config[name] for name in (*names, *more) if name in config}


def _ordered(x: Tensor, width: int, order: Sequence[int]) -> Tensor:
    """Rows of heads [heads * width, ...], those of each head in another order."""
    return x.reshape(-1, width, *x.shape[1:])[:, list(order)].reshape(x.shape)


def _flipped(x: Tensor) -> Tensor:
    return x.mT


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _alone(flip: Callable[[Tensor], Tensor]) -> tuple[Any, Any]:
    return lambda theirs: flip(theirs[0]), lambda ours: [flip(ours)]


def _split_in(join: Any, flip: Callable[[Tensor], Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
    return lambda theirs: join(flip(theirs[0]).chunk(3))


def _joined_out(split: Any, flip: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Sequence[Tensor]]:
    def out(ours: Tensor) -> Sequence[Tensor]:
        import torch

        return [flip(torch.cat(list(split(ours))))]

    return out
