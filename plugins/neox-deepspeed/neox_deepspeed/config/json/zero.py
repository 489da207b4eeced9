"""zero_optimization and aio as the engine reads them."""

from typing import Any

from attrs import asdict

from neox_deepspeed.config.sections.aio import AioBlock
from neox_deepspeed.config.sections.zero import OF_FILES, ZeroBlock


def zero_json(zero: ZeroBlock) -> dict[str, Any]:
    """The block zero_optimization, with the documents' values where the engine has others."""
    block: dict[str, Any] = {
        "stage": zero.stage,
        "allgather_partitions": zero.allgather_partitions,
        "allgather_bucket_size": zero.allgather_bucket_size,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "reduce_scatter": zero.reduce_scatter,
        "contiguous_gradients": zero.contiguous_gradients,
        "round_robin_gradients": zero.round_robin_gradients,
        "load_from_fp32_weights": zero.load_from_fp32_weights,
        "elastic_checkpoint": False,  # says how the engine's own checkpoints are cut; we write ours
        "ignore_unused_parameters": zero.ignore_unused_parameters,
        "sub_group_size": zero.sub_group_size,
        "stage3_max_live_parameters": zero.stage3_max_live_parameters,
        "stage3_max_reuse_distance": zero.stage3_max_reuse_distance,
        "stage3_prefetch_bucket_size": zero.stage3_prefetch_bucket_size,
        "stage3_param_persistence_threshold": zero.stage3_param_persistence_threshold,
        "stage3_gather_16bit_weights_on_model_save": zero.stage3_gather_16bit_weights_on_model_save,
        "zero_hpz_partition_size": zero.zero_hpz_partition_size,
        "zero_quantized_weights": zero.zero_quantized_weights,
        "zero_quantized_gradients": zero.zero_quantized_gradients,
    }
    offloads = {"offload_param": zero.offload_param, "offload_optimizer": zero.offload_optimizer}
    written = {name: asdict(each) for name, each in offloads.items() if each is not None and each.device != "none"}
    return block | {
        name: {key: value for key, value in each.items() if each["device"] == "nvme" or key not in OF_FILES}
        for name, each in written.items()
    }


def aio_json(aio: AioBlock, zero: ZeroBlock) -> dict[str, Any]:
    """The block aio, where something is offloaded to files."""
    return {"aio": asdict(aio)} if zero.uses_files else {}
