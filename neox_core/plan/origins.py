"""Where each value of a plan came from: a place in a file, --set, a default, or what it was derived from."""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from neox_core.config.problem import COMMAND_LINE
from neox_core.config.schema.structure import Config
from neox_core.hooks.registry import Registry
from neox_core.plan.assemble import plain_settings
from neox_core.plan.flat import flat
from neox_core.plan.runfile import RunPlan, to_plain

# plan path -> the config keys it can be written with; the first that is written counts. Others are written as named.
KEYS: Mapping[str, tuple[str, ...]] = {
    "model.tie_embeddings": ("no_weight_tying",),
    "model.parallel_residual": ("gpt_j_residual",),
    "model.residual_post_norm": ("apply_residual_connection_post_layernorm",),
    "model.output_init_method": ("output_layer_init_method",),
    "model.init_std": ("init_method_std",),
    "model.position": ("pos_emb",),
    "batch.micro_batch": ("train_micro_batch_size_per_gpu",),
    "batch.gradient_accumulation": ("gradient_accumulation_steps",),
    "batch.train_batch": ("train_batch_size",),
    "data.prefix": ("data_path",),
    "data.backend": ("data_impl",),
    "data.train": ("train_data_paths", "train_data_weights"),
    "data.valid": ("valid_data_paths", "valid_data_weights"),
    "data.test": ("test_data_paths", "test_data_weights"),
    "data.sampler_alpha": ("weighted_sampler_alpha", "weight_by_num_documents"),
    "data.tokenizer": ("tokenizer_type",),
    "optim.optimizer": ("optimizer.type",),
    "optim.optimizer.settings.weight_decay": ("optimizer.params.weight_decay", "weight_decay"),
    "optim.weight_decay": ("optimizer.params.weight_decay", "weight_decay"),
    "optim.schedule": ("scheduler.type", "lr_decay_style"),
    "optim.lr": ("optimizer.params.lr",),
    "optim.decay_steps": ("lr_decay_iters",),
    "optim.zero_stage": ("zero_optimization.stage",),
    "optim.whole_parameters": ("optimizer.type",),
    "precision.dtype": ("fp16.enabled", "bf16.enabled"),
    "precision.autocast": ("torch_autocast.enabled", "amp.enabled"),
    "checkpoint.keep_last": ("keep_last_n_checkpoints",),
    "checkpoint.load_optimizer": ("no_load_optim", "finetune"),
    "checkpoint.load_rng": ("no_load_rng", "finetune"),
    "checkpoint.save_optimizer": ("no_save_optim",),
    "checkpoint.save_rng": ("no_save_rng",),
    "checkpoint.schedule_from": ("override_lr_scheduler", "use_checkpoint_lr_scheduler"),
    "checkpoint.whole_weights": ("zero_optimization.stage3_gather_16bit_weights_on_model_save",),
    "checkpoint.load_masters": ("zero_optimization.load_from_fp32_weights",),
    "checkpoint.resume": (),
    "checkpoint.extra_save": ("extra_save_iters",),
    "cluster.hosts": ("include", "exclude", "num_nodes", "num_gpus", "hostfile"),
    "cluster.backend": ("distributed_backend",),
    "cluster.nvlink_pairs": ("detect_nvlink_pairs",),
    "cluster.tensor_parallel": ("model_parallel_size",),
    "cluster.pipeline_parallel": ("pipe_parallel_size",),
    "cluster.partition": ("pipe_partition_method",),
    "run_dir": ("save",),
    "debug": (),
}

# plan path, or the block around it -> what it follows from where it is not written
DERIVED: Mapping[str, str] = {
    "model.intermediate_size": "4 x hidden-size",
    "batch.micro_batch": "train_batch_size",
    "batch.gradient_accumulation": "the batch sizes, else 1",
    "batch.train_batch": "micro-batch x accumulation x data-parallel ranks",
    "batch.data_parallel": "ranks / (model-parallel-size x pipeline stages)",
    "optim.warmup_steps": "warmup x the steps of the decay",
    "optim.decay_steps": "train-iters",
    "data.backend": "the first bytes of the dataset",
    "cluster.device": "this machine",
    "cluster.hosts": "this machine",
    "cluster.master_addr": "the first host",
    "cluster.backend": "the device",
    "cluster.threads_per_rank": "the cores and ranks of this machine",
    "checkpoint.resume": "the command line",
    "checkpoint.schedules": "the installed plugins",
    "debug": "the command line",
    "run_dir": "the name of the config",
    "plugins": "the components in use",
    "neox_version": "the installation",
    "format": "the installation",
    "engine": "the plan",
}


@frozen
class SectionRows:
    """Values and origins of a plugin's section by key, and whether the config writes any of them."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    written: bool


def find_origins(config: Config, plan: RunPlan) -> dict[str, str]:
    """Dotted plan path -> its origin, for every value of the plan."""
    kernels = {f"model.kernels.{each.op}": (f"kernels.{each.op}", each.key) for each in plan.model.kernels}
    return {path: _origin(config, path, kernels.get(path)) for path in flat(to_plain(plan))}


def section_rows(config: Config, registry: Registry) -> Iterator[SectionRows]:
    """The keys of each section of a plugin."""
    for _, section in registry.sections:
        rows = flat(plain_settings(config.sections[section.settings]))
        origins = {path: _written(config, (path,)) for path in rows}
        yield SectionRows(rows, {path: origin or "default" for path, origin in origins.items()}, any(origins.values()))


def _origin(config: Config, path: str, keys: tuple[str, ...] | None = None) -> str:
    """keys: with which it can be written, where the path does not tell."""
    block = path.partition(".")[0]
    derived = DERIVED.get(path) or DERIVED.get(block)
    written = "" if block in DERIVED and path not in KEYS else _written(config, keys or _keys(path))
    return written or (f"derived from {derived}" if derived else "default")


def _written(config: Config, keys: tuple[str, ...]) -> str:
    """Where the first of the keys that is written is; "" where none is."""
    for key in keys:
        if key and config.is_set(key):
            return "set by --set" if config.origin(key) == COMMAND_LINE else f"set in {config.origin(key)}"
    return ""


def _keys(path: str) -> tuple[str, ...]:
    owner, inside, key = path.partition(".settings.")
    if path in KEYS:
        return KEYS[path]
    if inside:
        block = {"optim.optimizer": "optimizer.params.", "optim.schedule": "scheduler.params."}.get(owner, "")
        return (f"{block}{key}", key)
    return (path.rpartition(".")[2],)
