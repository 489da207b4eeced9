"""The keys of a neox config that continues a run of GPT-NeoX: from its files, and from what the checkpoint holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from neox_checkpoints.neox.kinds import require_config
from neox_core.config.read.load import load
from neox_core.errors import CheckpointError
from neox_core.untrusted import short

SAME = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
    "seq_length",
    "seed",
    "split",
    "data_path",
    "train_data_paths",
    "valid_data_paths",
    "test_data_paths",
    "train_data_weights",
    "valid_data_weights",
    "test_data_weights",
    "weight_by_num_documents",
    "weighted_sampler_alpha",
    "train_iters",
    "eval_interval",
    "eval_iters",
    "tokenizer_type",
    "vocab_file",
    "merge_file",
    "eod_mask_loss",
    "apply_query_key_layer_scaling",
    "attention_softmax_in_fp32",
    "attention_config",
    "sparsity_config",
    "init_method",
    "output_layer_init_method",
    "init_method_std",
    "gpt_j_residual",
    "gpt_j_tied",
    "no_weight_tying",
    "use_bias_in_attn_linear",
    "use_bias_in_mlp",
    "sliding_window_width",
)
"""Keys that mean here what they mean there."""
UNREAD = {"apply_residual_connection_post_layernorm", "reset_attention_mask", "reset_position_ids"}
"""Keys that act here, and that GPT-NeoX has and reads nowhere, since 2021."""
DEFAULTS: dict[str, Any] = {
    "norm": "layernorm",
    "pos_emb": "learned",
    "activation": "gelu",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "weight_decay": 0.1,
    "split": "969, 30, 1",
    "seed": 1234,
}
"""Values of GPT-NeoX 2 for keys that its files may leave out, where those of neox could differ."""
OLDER = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "weight_decay": 0.01}
"""Where GPT-NeoX 1 had others."""
EPSILONS = {
    "layernorm": ("layernorm_epsilon", 1e-5),
    "rmsnorm": ("rms_norm_epsilon", 1e-8),
    "scalenorm": ("scalenorm_epsilon", 1e-8),
}
ACTIVATIONS = {"swish": "silu", "llama": "swiglu"}
OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "cpu_adam": "CPU_Adam",
    "cpu_torch_adam": "CPU_torch_adam",
    "lion": "Lion",
    "sm3": "SM3",
    "sgd": "SGD",
}
FIXED: dict[str, tuple[Any, ...]] = {
    "use_mup": (False,),
    "opt_pos_emb_offset": (0,),
    "moe_num_experts": (1,),
    "te_columnparallel": (False,),
    "te_rowparallel": (False,),
    "te_layernorm_mlp": (False,),
    "te_mha": (False,),
    "te_fp8_mha": (False,),
    "use_bnb_optimizer": (False,),
    "train_impl": ("normal",),
    "dataset_impl": ("gpt2",),
    "pack_impl": ("packed",),
    "allow_chopped": (True,),
    "soft_prompt_tuning": (False,),
    **{f"{part}_label_data_paths": () for part in ("train", "valid", "test")},
}
"""Keys of another model, objective or order of samples, and the values at which they change nothing: of a block, its
`enabled`.
"""
SAID_TWICE = {
    "bf16",
    "bias_gelu_fusion",
    "expansion_factor",
    "fp16",
    "gas",
    "gradient_accumulation_steps",
    "intermediate_size",
    "onnx_safe",
    "make_vocab_size_divisible_by",
    "mlp_multiple_of",
    "mlp_type",
    "model_parallel_size",
    "pipe_parallel_size",
    "precision",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
}
"""Keys that are used where they act, or that say what the tensors, DeepSpeed's config or names of files say too."""
NEWER_CURVES = (0, 15)
"""A DeepSpeed that GPT-NeoX has had only since its curves are those of today."""
SCHEDULE = {"lr_decay_fraction", "lr_decay_iters", "lr_decay_style", "min_lr", "warmup"}
"""Keys that the stored schedule says too."""


class Asked(dict[str, Any]):
    """A config, and the keys of it that were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's; notes that the key was asked for."""
        self.asked.add(key)
        return super().get(key, default)


@define
class Written:
    """Keys in the order in which they are written, with lines above some, and notes for the user."""

    keys: dict[str, Any] = field(factory=dict)
    comments: dict[str, str] = field(factory=dict)
    notes: list[str] = field(factory=list)

    def put(self, key: str, value: Any, comment: str = "") -> None:
        """Write a key, with hyphens. comment: the lines above it; "" for none."""
        self.keys[key.replace("_", "-")] = value
        if comment:
            self.comments[key.replace("_", "-")] = comment


@define
class Facts:
    """What the files of a checkpoint say of the run. shapes: of its parameters, joined over the tensor ranks.

    dtype: of the weights. deepspeed: its version, "" where it is not stored. ds_config: its own config, where
    that is stored. scheduler: state of the learning rate.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    step: int
    pipeline: bool
    tensor_ranks: int
    data_ranks: int
    first_version: bool
    deepspeed: str
    ds_config: Mapping[str, Any]
    scheduler: Mapping[str, Any]


def read_config(files: Sequence[Path]) -> dict[str, Any]:
    """The keys of GPT-NeoX's files, with `_`. Raises ConfigError for files that cannot be read or contradict."""
    return {key.replace("-", "_"): value for key, value in load(files).values.items()}


def keys_of(config: Mapping[str, Any], facts: Facts) -> Written:
    """The config to continue with. Raises CheckpointError for what this version of neox does not have, and for a config
    that contradicts the checkpoint.
    """
    given = {key: value for key, value in config.items() if value is not None}
    require_config(given, facts.path)
    for key, rests in FIXED.items():
        found = given.get(key)
        if key in given and (found.get("enabled", False) if isinstance(found, Mapping) else found) not in rests:
            raise CheckpointError(
                f"{facts.path}: the config sets {key} to {short(found)}, which this version of neox cannot import"
            )
    defaults = {**DEFAULTS, **(OLDER if facts.first_version else {})}
    out = Written()
    model = Asked({**defaults, **given})
    listed = any(model.get(f"{part}_data_paths") for part in ("train", "valid", "test"))
    for key in SAME:
        if key in model and not (listed and key in ("split", "data_path")):
            out.put(key, model[key])
    out.put("max_position_embeddings", model.get("max_position_embeddings", model.get("seq_length")))
    out.put("seq_length", model.get("seq_length", model.get("max_position_embeddings")))
    _shape(model, facts, out)
    _training(model, facts, out)
    out.notes += [f"{key} is left out: GPT-NeoX reads it nowhere" for key in sorted(UNREAD) if model.get(key)]
    known = model.asked | UNREAD | FIXED.keys() | SAID_TWICE | (SCHEDULE if "start_lr" in facts.scheduler else set())
    if left := sorted(given.keys() - known):
        named = ", ".join(short(key) for key in left)
        out.notes.append(f"of the run's config these keys are left out; write those that you need: {named}")
    return out


def _shape(model: Mapping[str, Any], facts: Facts, out: Written) -> None:
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    rows = facts.shapes["0.word_embeddings.weight"][0]
    out.put("padded_vocab_size", rows)
    kv_heads = model.get("num_kv_heads") or heads
    if kv_heads != heads:
        out.put("num_kv_heads", kv_heads)
    norm = model["norm"]
    if norm not in EPSILONS:
        raise CheckpointError(f"{facts.path}: norm {short(norm)} is one that this version of neox cannot import")
    key, epsilon = EPSILONS[norm]
    out.put("norm", norm)
    out.put(key, float(model.get(key, epsilon)))
    older_mlp = any(name.endswith(".mlp.w1.weight") for name in facts.shapes)
    if norm == "rmsnorm":
        place = "rms" if older_mlp or facts.first_version else "mean-square"
        out.put("rms_norm_epsilon_in", place, "until May 2025 GPT-NeoX added the epsilon to the rms: rms")
    position = model["pos_emb"]
    out.put("pos_emb", position)
    if position == "rotary":
        out.put("rotary_pct", float(model.get("rotary_pct", 1.0)))
        out.put("rotary_emb_base", float(model.get("rotary_emb_base", 10000)))
    if position == "rpe":
        out.put("rpe_num_buckets", model.get("rpe_num_buckets", 32))
        out.put("rpe_max_distance", model.get("rpe_max_distance", 128))
    _qk_norm(model, facts, out)
    _mlp(model, facts, out, gated=older_mlp)
    for key in ("hidden_dropout", "attention_dropout"):
        out.put(key, float(model[key]))
    for key, name in (("use_bias_in_attn_linear", "attention.query_key_value.bias"), ("use_bias_in_mlp", None)):
        names = (name,) if name else ("mlp.linear1.bias", "mlp.dense_h_to_4h.bias")
        out.put(key, any(f"2.{each}" in facts.shapes for each in names))
    if model.get("gpt_j_residual") and not out.keys["use-bias-in-mlp"]:
        out.notes.append(
            "GPT-NeoX leaves the attention out of a block with gpt_j_residual whose MLP has no bias; neox adds it, so"
            " that losses differ from the first step on"
        )
    copies = facts.tensor_ranks > 1 and any(name.endswith(("dense.bias", "linear2.bias")) for name in facts.shapes)
    if copies and model.get("sequence_parallel") and not model.get("gpt_j_residual"):
        raise CheckpointError(
            f"{facts.path}: the config sets sequence_parallel without gpt_j_residual: GPT-NeoX then has"
            " other biases of attention.dense and mlp.linear2 for each part of a sample, which no other layout has"
        )
    if hidden % heads:
        raise CheckpointError(f"{facts.path}: hidden_size {hidden} is not a multiple of {heads} attention heads")


def _qk_norm(model: Mapping[str, Any], facts: Facts, out: Written) -> None:
    """GPT-NeoX's LayerNorm of queries and keys takes the heads of a tensor rank together, as neox takes all heads; its
    other norms take each head by itself, by one norm for queries and keys.
    """
    if not model.get("use_qk_layernorm"):
        return
    if model["norm"] != "layernorm" or facts.tensor_ranks > 1:
        layer = model["norm"] == "layernorm"
        alone = f"{facts.tensor_ranks} tensor ranks: each has a norm of its own, which takes its own heads together"
        why = alone if layer else f"norm {short(model['norm'])}: GPT-NeoX then takes each head by itself"
        raise CheckpointError(
            f"{facts.path}: the config sets use_qk_layernorm with {why}; that of neox takes all heads together"
        )
    out.put("use_qk_layernorm", True)


def _mlp(model: Mapping[str, Any], facts: Facts, out: Written, *, gated: bool) -> None:
    activation = ACTIVATIONS.get(model["activation"], model["activation"])
    if gated:
        activation = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}.get(activation, activation)
    comment = ""
    if activation == "gelu" and model.get("bias_gelu_fusion"):
        activation, comment = "openai-gelu", "bias_gelu_fusion computes GELU by tanh"
    if activation == "gelu" and model.get("onnx_safe"):
        activation = "erf-gelu"
    out.put("activation", activation, comment)
    for name in ("mlp.linear2.weight", "mlp.dense_4h_to_h.weight", "mlp.w2.weight"):
        if f"2.{name}" in facts.shapes:
            out.put("intermediate_size", facts.shapes[f"2.{name}"][1], "the width after the gate, where there is one")


def _training(model: Mapping[str, Any], facts: Facts, out: Written) -> None:
    optimizer = model.get("optimizer") or {}
    kind = str(optimizer.get("type", "adam"))
    params = {key: value for key, value in (optimizer.get("params") or {}).items() if value is not None}
    name = OPTIMIZERS.get(kind.lower(), kind)
    scheduler = facts.scheduler
    if "start_lr" in scheduler:
        params["lr"] = scheduler["start_lr"]
        out.put("min_lr", scheduler["min_lr"])
        out.put("lr_decay_style", scheduler["decay_style"])
        end = scheduler["end_iter"]
        rises = (
            scheduler["decay_style"] == "cosine" and end < out.keys.get("train-iters", 0) and not facts.first_version
        )
        out.put("lr_decay_iters", end, "the rate is then min-lr; GPT-NeoX's cosine rises again" if rises else "")
        out.put("warmup", scheduler["warmup_iter"] / end)
        _curve(facts, out)
    params.pop("weight_decay", None)
    out.put("optimizer", {"type": name, "params": params})
    if name != "SM3":
        out.put("weight_decay", float(model["weight_decay"]))
    out.put("gradient_clipping", *_clipping(model, facts))
    _batch(model, facts, out)
    if facts.dtype != "fp32":
        block = {"enabled": True}
        if facts.dtype == "fp16":
            known = ("loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale", "initial_scale_power")
            given = model.get("fp16") or {}
            block |= {each: given[each] for each in known if given.get(each) is not None}
        out.put(facts.dtype, block)


def _curve(facts: Facts, out: Written) -> None:
    """GPT-NeoX's curves, but for the constant one, were others until September 2023, which no file of a run tells."""
    if facts.scheduler["decay_style"] not in ("linear", "cosine", "exponential"):
        return
    if facts.first_version:
        out.put("lr_decay_version", 1, "the curve of GPT-NeoX 1; 2: that of today")
    elif _version(facts.deepspeed) < NEWER_CURVES:
        out.notes.append("the learning rate is that of GPT-NeoX since September 2023; before: lr-decay-version: 1")


def _clipping(model: Mapping[str, Any], facts: Facts) -> tuple[float, str]:
    """Today's GPT-NeoX does not tell DeepSpeed of its own default, 1.0, and DeepSpeed's is not to clip."""
    if facts.ds_config:
        found = float(facts.ds_config.get("gradient_clipping") or 0.0)
        asked = model.get("gradient_clipping")
        silent = asked not in (None, 0, 0.0) and not found
        return found, f"GPT-NeoX does not clip with gradient_clipping: {asked}" if silent else ""
    extra = model.get("deepspeed_extra_args") or {}
    return float(extra.get("gradient_clipping", model.get("gradient_clipping", 0.0)) or 0.0), ""


def _batch(model: Mapping[str, Any], facts: Facts, out: Written) -> None:
    micro = model.get("train_micro_batch_size_per_gpu") or facts.ds_config.get("train_micro_batch_size_per_gpu")
    whole = facts.ds_config.get("train_batch_size") or model.get("train_batch_size")
    steps = model.get("gradient_accumulation_steps") or model.get("gas") or 1
    if whole is None and micro is not None and facts.data_ranks:
        whole = micro * steps * facts.data_ranks
    if type(whole) is not int or whole < 1:
        raise CheckpointError(
            f"{facts.path}: neither the config nor the checkpoint gives the batch", hint="add train_batch_size"
        )
    out.put("train_batch_size", whole)
    out.put("train_micro_batch_size_per_gpu", micro if micro and whole % micro == 0 else whole)
    accumulated = whole // ((micro or whole) * max(1, facts.data_ranks))
    if facts.pipeline and accumulated > 1 and _adds_up(facts.deepspeed):
        out.put("gradient_scale", float(accumulated), "GPT-NeoX's pipelines add up gradients and do not average them")


def _adds_up(version: str) -> bool:
    """Whether a pipeline of this DeepSpeed does not divide gradients by the accumulation: from 0.15.5 on."""
    return _version(version) >= (0, 15, 5)


def _version(text: str) -> tuple[int, ...]:
    """Its numbers; none where it is not known."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    return () if found is None else tuple(int(each or 0) for each in found.groups())
