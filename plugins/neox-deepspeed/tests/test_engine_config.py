"""Values that act on a GPU or on large models only reach DeepSpeed's own configuration, as DeepSpeed reads it."""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

ZERO = "zero_config"
PARAM, OPTIMIZER = f"{ZERO}.offload_param", f"{ZERO}.offload_optimizer"
# what a config says, what of DeepSpeed's configuration it becomes, the default of the documents (None: block not there)
VALUES: dict[str, tuple[str, Any, Any, Any]] = {
    "stage": (f"{ZERO}.stage", 3, 3, 0),
    "allgather_bucket_size": (f"{ZERO}.allgather_bucket_size", 2000, 2000, 500_000_000),
    "reduce_bucket_size": (f"{ZERO}.reduce_bucket_size", 1000, 1000, 500_000_000),
    "overlap_comm": (f"{ZERO}.overlap_comm", True, True, False),
    "reduce_scatter": (f"{ZERO}.reduce_scatter", False, False, True),
    "contiguous_gradients": (f"{ZERO}.contiguous_gradients", False, False, True),
    "round_robin_gradients": (f"{ZERO}.round_robin_gradients", True, True, False),
    "load_from_fp32_weights": (f"{ZERO}.load_from_fp32_weights", False, False, True),
    "ignore_unused_parameters": (f"{ZERO}.ignore_unused_parameters", False, False, True),
    "sub_group_size": (f"{ZERO}.sub_group_size", 1000, 1000, 1_000_000_000_000),
    "stage3_max_live_parameters": (f"{ZERO}.max_live_parameters", 7, 7, 1_000_000_000),
    "stage3_max_reuse_distance": (f"{ZERO}.max_reuse_distance", 7, 7, 1_000_000_000),
    "stage3_prefetch_bucket_size": (f"{ZERO}.prefetch_bucket_size", 7, 7, 500_000_000),
    "stage3_param_persistence_threshold": (f"{ZERO}.param_persistence_threshold", 7, 7, 100_000),
    "stage3_gather_16bit_weights_on_model_save": (f"{ZERO}.gather_16bit_weights_on_model_save", True, True, False),
    "stage3_gather_fp16_weights_on_model_save": (f"{ZERO}.gather_16bit_weights_on_model_save", True, True, False),
    "zero_hpz_partition_size": (f"{ZERO}.zero_hpz_partition_size", 2, 2, 1),
    "zero_quantized_weights": (f"{ZERO}.zero_quantized_weights", True, True, False),
    "zero_quantized_gradients": (f"{ZERO}.zero_quantized_gradients", True, True, False),
    "offload_param.device": (f"{PARAM}.device", "nvme", "nvme", "cpu"),
    "offload_param.nvme_path": (f"{PARAM}.nvme_path", "/fast", Path("/fast"), Path("/local_nvme")),
    "offload_param.pin_memory": (f"{PARAM}.pin_memory", True, True, False),
    "offload_param.buffer_count": (f"{PARAM}.buffer_count", 9, 9, 5),
    "offload_param.buffer_size": (f"{PARAM}.buffer_size", 9, 9, 100_000_000),
    "offload_param.max_in_cpu": (f"{PARAM}.max_in_cpu", 9, 9, 1_000_000_000),
    "offload_optimizer.device": (f"{OPTIMIZER}.device", "nvme", "nvme", "cpu"),
    "offload_optimizer.nvme_path": (f"{OPTIMIZER}.nvme_path", "/fast", Path("/fast"), Path("/local_nvme")),
    "offload_optimizer.pin_memory": (f"{OPTIMIZER}.pin_memory", True, True, False),
    "offload_optimizer.buffer_count": (f"{OPTIMIZER}.buffer_count", 9, 9, 4),
    "offload_optimizer.ratio": (f"{OPTIMIZER}.ratio", 0.3, 0.3, 1.0),
    "offload_optimizer.fast_init": (f"{OPTIMIZER}.fast_init", True, True, False),
}
TOP: dict[str, tuple[str, Any, Any, Any]] = {
    "communication_data_type": ("communication_data_type", "fp16", torch.float16, None),
    "fp32-allreduce": ("communication_data_type", True, torch.float32, None),
    "prescale_gradients": ("prescale_gradients", True, True, False),
    "gradient_predivide_factor": ("gradient_predivide_factor", 2.0, 2.0, 1.0),
    "data_types.grad_accum_dtype": ("grad_accum_dtype", "fp32", "fp32", None),
    "fp16.auto_cast": ("float16_config.auto_cast", True, True, False),
    "fp16.loss_scale": ("float16_config.loss_scale", 128.0, 128.0, 0.0),
    "fp16.initial_scale_power": ("float16_config.initial_scale_power", 9, 9, 16),
    "fp16.loss_scale_window": ("float16_config.loss_scale_window", 9, 9, 1000),
    "fp16.hysteresis": ("float16_config.hysteresis", 9, 9, 2),
    "fp16.consecutive_hysteresis": ("float16_config.consecutive_hysteresis", True, True, False),
    "fp16.min_loss_scale": ("float16_config.min_loss_scale", 9, 9, 1),
    "bf16.enabled": ("bfloat16_config.enabled", True, True, False),
    "gradient_clipping": ("gradient_clipping", 0.5, 0.5, 1.0),
    "train_batch_size": ("train_batch_size", 8, 8, 4),
    "train_micro_batch_size_per_gpu": ("train_micro_batch_size_per_gpu", 2, 2, 4),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 3, 3, 1),
    "aio.block_size": ("aio_config.block_size", 4096, 4096, 1_048_576),
    "aio.queue_depth": ("aio_config.queue_depth", 9, 9, 8),
    "aio.thread_count": ("aio_config.intra_op_parallelism", 9, 9, 1),
    "aio.intra_op_parallelism": ("aio_config.intra_op_parallelism", 9, 9, 1),
    "aio.single_submit": ("aio_config.single_submit", True, True, False),
    "aio.overlap_events": ("aio_config.overlap_events", False, False, True),
    "deepspeed_extra_args.log_level": ("log_level", "debug", "debug", None),
}
# what must stand beside the keys of a block for them to act
BESIDE = {"fp16": ("fp16.enabled=true",), "aio": ("zero_optimization={stage: 3, offload_param: {device: nvme}}",)}
Parse = Callable[..., Any]


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parse:
    """`--set`s to DeepSpeed's own object. The rules stay out of it: they have tests of their own."""
    from deepspeed.runtime.config import DeepSpeedConfig

    from neox_core.plan import resolve

    (tmp_path / "t.bin").write_bytes(b"")
    (tmp_path / "t.idx").write_bytes(b"MMIDIDX\x00\x00")
    (tmp_path / "c.yml").write_text(
        "num-layers: 2\nhidden-size: 64\nnum-attention-heads: 4\nmax-position-embeddings: 32\nseq-length: 32\n"
        f"data-path: {tmp_path / 't'}\npadded-vocab-size: 256\ntrain-iters: 100\nnum_gpus: 1\n"
        "optimizer: {type: Adam, params: {lr: 1e-3}}\n"
    )

    def _parse(*sets: str, ruled: bool = False) -> Any:
        if not ruled:
            monkeypatch.setattr(resolve, "check_rules", lambda *_: iter(()))
        batch = () if any("train_" in each for each in sets) else ("train_micro_batch_size_per_gpu=4",)
        plan = prepare_run([tmp_path / "c.yml"], [*batch, *sets], machine=Machine(1, 4)).plan
        return DeepSpeedConfig(plan.engine)

    return _parse


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("key", VALUES)
def test_zero_optimization(parse: Parse, key: str) -> None:
    path, written, read, default = VALUES[key]
    block, _, name = key.rpartition(".")
    if block:
        device = "" if name == "device" else "device: nvme"  # other keys than pin_memory and ratio are of files alone
        stated = f"{{stage: 3, {block}: {{{name}: {_text(written)}, {device}}}}}"
        at_rest = f"{{stage: 3, {block}: {{{device}}}}}"
    else:
        stated, at_rest = f"{{stage: 3, {name}: {_text(written)}}}", "{}"
    stated = "{stage: 3}" if key == "stage" else stated
    assert attrgetter(path)(parse(f"zero_optimization={stated}")) == read
    assert attrgetter(path)(parse(f"zero_optimization={at_rest}")) == default


@pytest.mark.parametrize("key", TOP)
def test_top_level_keys_and_other_blocks(parse: Parse, key: str) -> None:
    path, written, read, default = TOP[key]
    beside = BESIDE.get(key.partition(".")[0], ())
    config, plain = parse(*beside, f"{key}={_text(written)}"), parse(*beside)
    assert _value(config, path) == read
    assert _value(plain, path) == default


def _value(config: Any, path: str) -> Any:
    """aio_config is a mapping."""
    first, _, rest = path.partition(".")
    value = getattr(config, first)
    if not rest:
        return value
    return value[rest] if isinstance(value, dict) else getattr(value, rest)


@pytest.mark.parametrize("block", ["offload_param", "offload_optimizer"])
def test_no_offload_is_no_block(parse: Parse, block: str) -> None:
    assert getattr(parse(f"zero_optimization={{stage: 3, {block}: {{device: none}}}}").zero_config, block) is None


def test_keys_on_whose_presence_deepspeed_raises_stay_here(parse: Parse) -> None:
    """`amp` and `sparse_gradients` stop it even when they are off."""
    parse("amp={enabled: false}", "sparse_gradients=false", "zero_optimization={grad_hooks: true}", ruled=True)
