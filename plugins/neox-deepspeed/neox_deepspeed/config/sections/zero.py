"""ZeRO and its offload, under the engine's names."""

from typing import Any, Literal

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above, at_least, between, not_empty


def _speed(default: Any, *, help: str, **more: Any) -> Any:
    """A setting that changes where numbers are stored, not their values."""
    return setting(default, help=help, changes="speed", origin="deepspeed", **more)


def _even(instance: Any, field: Any, value: int) -> None:
    if value <= 0 or value % 2:
        raise ValueError(f"must be even and greater than 0, not {value}")


@frozen
class OffloadParamBlock:
    """Where the shards of the parameters are stored. Stage 3."""

    device: Literal["none", "cpu", "nvme"] = _speed("cpu", help="Host memory, files, or no offload.")
    nvme_path: str = _speed("/local_nvme", help="Folder for the files of device nvme.", check=not_empty)
    pin_memory: bool = _speed(False, help="Use page-locked host memory.")
    buffer_count: int = _speed(5, help="Buffers between device and files.", check=above(0))
    buffer_size: int = _speed(100_000_000, help="Size of each buffer.", unit="elements", check=above(0))
    max_in_cpu: int = _speed(
        1_000_000_000,
        help="Elements kept in host memory before files are used.",
        unit="elements",
        check=at_least(0),
    )


@frozen
class OffloadOptimizerBlock:
    """Where the optimizer's state is stored; its update then runs on the host."""

    device: Literal["none", "cpu", "nvme"] = _speed("cpu", help="Host memory, files, or no offload.")
    nvme_path: str = _speed("/local_nvme", help="Folder for the files of device nvme.", check=not_empty)
    pin_memory: bool = _speed(False, help="Use page-locked host memory.")
    buffer_count: int = _speed(4, help="Buffers between host and files: one per number of a parameter.", check=above(0))
    ratio: float = _speed(1.0, help="Share of the update that runs on the host.", unit="fraction", check=between(0, 1))
    fast_init: bool = _speed(False, help="Write the initial state to files in batches.")


OF_FILES = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "fast_init")
"""Keys of both blocks that apply only with device nvme."""


@frozen
class ZeroBlock:
    """What is sharded over data-parallel ranks, and how it is sent."""

    stage: Literal[0, 1, 2, 3] = setting(
        0,
        help="0: every rank has everything. 1 shards the optimizer's state; 2 also gradients; 3 also parameters.",
        changes="speed",
        origin="deepspeed",
    )
    allgather_bucket_size: int = _speed(
        500_000_000, help="Largest number of elements gathered at once; even.", unit="elements", check=_even
    )
    reduce_bucket_size: int = _speed(
        500_000_000, help="Largest number of elements reduced at once.", unit="elements", check=above(0)
    )
    overlap_comm: bool = _speed(False, help="Reduce gradients while the backward pass runs.")
    reduce_scatter: bool = _speed(True, help="Reduce each shard to its owner only, instead of to all ranks.")
    contiguous_gradients: bool = _speed(True, help="Copy gradients to one buffer as they are computed.")
    round_robin_gradients: bool = _speed(False, help="Assign gradients to ranks in turn. Stages 1 and 2.")
    allgather_partitions: bool = _speed(
        True,
        help="Collect updated weights by all-gather. false: ranks own whole parameters and broadcast them. Stage 1.",
    )
    load_from_fp32_weights: bool = setting(
        True, help="Resume from the fp32 masters of a checkpoint, not from its rounded weights.", origin="deepspeed"
    )
    elastic_checkpoint: bool = setting(
        True, help="Load checkpoints on any number of ranks: neox always can.", changes="output", origin="deepspeed"
    )
    grad_hooks: bool = _speed(
        True, help="Reduce in the backward pass, which needs overlap_comm: true. false: after it. Stage 1."
    )
    ignore_unused_parameters: bool = setting(
        True, help="Accept parameters that the loss does not depend on. Stage 2.", origin="deepspeed"
    )
    sub_group_size: int = _speed(
        1_000_000_000_000, help="Parameters updated together. Stage 3.", unit="elements", check=above(0)
    )
    stage3_max_live_parameters: int = _speed(
        1_000_000_000,
        help="Largest number of elements of parameters gathered at once.",
        unit="elements",
        check=at_least(0),
    )
    stage3_max_reuse_distance: int = _speed(
        1_000_000_000,
        help="A parameter that is used again within this many elements stays gathered.",
        unit="elements",
        check=at_least(0),
    )
    stage3_prefetch_bucket_size: int = _speed(
        500_000_000, help="Parameters gathered ahead of their use.", unit="elements", check=at_least(0)
    )
    stage3_param_persistence_threshold: int = _speed(
        100_000, help="Smaller parameters stay whole on every rank.", unit="elements", check=at_least(0)
    )
    stage3_gather_16bit_weights_on_model_save: bool = setting(
        False,
        help="Store weights whole in a checkpoint instead of a slice per rank. Stage 3.",
        changes="output",
        aliases=("stage3_gather_fp16_weights_on_model_save",),
        origin="deepspeed",
    )
    zero_hpz_partition_size: int = _speed(
        1, help="Ranks (of one node) over which a second copy of the parameters is sharded.", check=above(0)
    )
    zero_quantized_weights: bool = setting(False, help="Gather weights in 8 bits. Stage 3.", origin="deepspeed")
    zero_quantized_gradients: bool = setting(False, help="Reduce gradients in 4 bits. Stage 3.", origin="deepspeed")
    offload_param: OffloadParamBlock | None = _speed(None, help="Block: store parameters elsewhere. Stage 3.")
    offload_optimizer: OffloadOptimizerBlock | None = _speed(None, help="Block: store the optimizer's state elsewhere.")

    @property
    def updates_on_the_host(self) -> bool:
        """Whether the optimizer's state is offloaded."""
        return self.offload_optimizer is not None and self.offload_optimizer.device != "none"

    @property
    def uses_files(self) -> bool:
        """Whether anything is offloaded to nvme."""
        return any(
            block is not None and block.device == "nvme" for block in (self.offload_param, self.offload_optimizer)
        )


@frozen
class ZeroSection:
    """ZeRO, DeepSpeed's sharding over data-parallel ranks."""

    zero_optimization: ZeroBlock = setting(ZeroBlock(), help="Block of ZeRO settings.", origin="deepspeed")
    zero_allow_untested_optimizer: bool = setting(
        False, help="Shard an optimizer whose author has not tested it at this ZeRO stage.", origin="deepspeed"
    )
    zero_force_ds_cpu_optimizer: bool = setting(
        False, help="Refuse any optimizer but CPU_Adam where its state is offloaded.", origin="deepspeed"
    )
