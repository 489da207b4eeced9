"""ZeRO, under the names that the engine knows."""

from typing import Literal

from attrs import frozen

from neox_core.config.checks import above, only
from neox_core.config.setting import setting


@frozen
class ZeroBlock:
    """Sharding of the optimizer's state."""

    stage: Literal[0, 1, 2, 3] = setting(
        0, help="0: every rank has all; 1: the optimizer's state is sharded.", check=only(0, 1), origin="deepspeed"
    )
    allgather_bucket_size: int = setting(
        500_000_000,
        help="Most elements gathered at once.",
        unit="elements",
        check=above(0),
        changes="speed",
        origin="deepspeed",
    )
    reduce_bucket_size: int = setting(
        500_000_000,
        help="Most elements reduced at once.",
        unit="elements",
        check=above(0),
        changes="speed",
        origin="deepspeed",
    )
    overlap_comm: bool = setting(
        False, help="Reduce gradients while the backward pass runs.", changes="speed", origin="deepspeed"
    )
    reduce_scatter: bool = setting(
        True,
        help="Reduce each shard to its owner instead of everything to everyone.",
        changes="speed",
        origin="deepspeed",
    )
    contiguous_gradients: bool = setting(
        True, help="Copy gradients to one buffer as they appear.", changes="speed", origin="deepspeed"
    )
    round_robin_gradients: bool = setting(
        False, help="Deal gradients to ranks in turn.", check=only(False), changes="speed", origin="deepspeed"
    )
    allgather_partitions: bool = setting(
        True,
        help="Collect updated shards by all-gather: the engine knows no other way.",
        check=only(True),
        origin="deepspeed",
    )
    cpu_offload: bool = setting(False, help="Optimizer on the host.", check=only(False), origin="deepspeed")
    load_from_fp32_weights: bool = setting(
        True, help="Start the fp32 masters from saved fp32 weights.", check=only(True), origin="deepspeed"
    )


@frozen
class ZeroSection:
    """ZeRO, DeepSpeed's sharding over data-parallel ranks."""

    zero_optimization: ZeroBlock = setting(ZeroBlock(), help="Block of ZeRO settings.", origin="deepspeed")
