"""Where each value of a plan came from: a place in a file, --set, a default, or what it was derived from."""

from collections.abc import Mapping
from typing import Any

import attrs

from neox_core.config.structure import Config
from neox_core.plan.runfile import ComponentRef, RunPlan

# plan path -> the config key it is taken from
KEYS: Mapping[str, str] = {
    "model.padded_vocab_size": "padded_vocab_size",
    "model.tie_embeddings": "no_weight_tying",
    "model.parallel_residual": "gpt_j_residual",
    "model.residual_post_norm": "apply_residual_connection_post_layernorm",
    "model.output_init_method": "output_layer_init_method",
    "model.init_std": "init_method_std",
    "model.position": "pos_emb",
    "batch.micro_batch": "train_micro_batch_size_per_gpu",
    "batch.gradient_accumulation": "gradient_accumulation_steps",
    "batch.train_batch": "train_batch_size",
    "data.prefix": "data_path",
    "data.backend": "data_impl",
    "data.tokenizer": "tokenizer_type",
    "optim.optimizer": "optimizer.type",
    "optim.schedule": "lr_decay_style",
    "optim.lr": "optimizer.params.lr",
    "optim.zero_stage": "zero_optimization.stage",
    "checkpoint.keep_last": "keep_last_n_checkpoints",
    "monitors": "monitors",
    "launcher": "launcher",
}

DERIVED: Mapping[str, str] = {
    "model.intermediate_size": "4 x hidden-size",
    "batch.micro_batch": "train_batch_size",
    "batch.gradient_accumulation": "the batch sizes, else 1",
    "batch.train_batch": "micro-batch x accumulation x ranks",
    "batch.data_parallel": "the number of ranks",
    "optim.warmup_steps": "warmup x the steps of the decay",
    "optim.decay_steps": "lr-decay-iters, else train-iters",
    "precision.dtype": "fp16 and bf16",
    "precision.autocast": "torch_autocast",
    "checkpoint.load_optimizer": "finetune and no-load-optim",
    "checkpoint.load_rng": "finetune and no-load-rng",
    "checkpoint.save_optimizer": "no-save-optim",
    "checkpoint.save_rng": "no-save-rng",
    "checkpoint.schedule_from": "override-lr-scheduler and use-checkpoint-lr-scheduler",
    "checkpoint.resume": "the command line",
    "cluster.device": "device and this machine",
    "cluster.hosts": "num-gpus and this machine",
    "cluster.backend": "distributed-backend, else the device",
    "cluster.threads_per_rank": "the cores and ranks of this machine",
    "cluster.tensor_parallel": "model-parallel-size",
    "cluster.pipeline_parallel": "pipe-parallel-size",
    "debug": "the command line",
    "run_dir": "save, else the config's name",
    "plugins": "the components in use",
    "neox_version": "the installation",
    "format": "the installation",
    "engine": "the rest of the plan",
}

ALWAYS_DERIVED = frozenset(
    {"optim.warmup_steps", "optim.decay_steps", "precision.dtype", "precision.autocast", "run_dir"}
)


def find_origins(config: Config, plan: RunPlan) -> dict[str, str]:
    """Dotted plan path -> its origin, for every value of the plan."""
    found: dict[str, str] = {}
    for path, value in _leaves(plan, ""):
        found[path] = _origin(config, path, value)
    return found


def _leaves(value: Any, path: str) -> Any:
    for each in attrs.fields(type(value)):
        inner, here = getattr(value, each.name), f"{path}.{each.name}" if path else each.name
        if isinstance(inner, ComponentRef):
            yield here, inner
            for key in inner.settings:
                yield f"{here}.settings.{key}", inner
        elif attrs.has(type(inner)):
            yield from _leaves(inner, here)
        else:
            yield here, inner


def _origin(config: Config, path: str, value: Any) -> str:
    block, _, name = path.rpartition(".")
    if block.endswith(".settings") or ".settings." in path:
        owner, _, key = path.partition(".settings.")
        prefix = "optimizer.params." if owner == "optim.optimizer" else ""
        return _written(config, prefix + key) or "default"
    if path in ALWAYS_DERIVED:
        return f"derived from {DERIVED[path]}"
    written = _written(config, KEYS.get(path, name))
    if written:
        return written
    if path in DERIVED:
        return f"derived from {DERIVED[path]}"
    return "default"


def _written(config: Config, key: str) -> str:
    if not config.is_set(key):
        return ""
    origin = config.origin(key)
    return f"set in {origin}" if origin != "--set" else "set by --set"
