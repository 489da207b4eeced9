"""Asynchronous access to files, for ZeRO's offload to NVMe."""

from typing import Any

from attrs import frozen

from neox_core.config.checks import above
from neox_core.config.setting import setting


def _sectors(instance: Any, field: Any, value: int) -> None:
    if value <= 0 or value % 512:
        raise ValueError(f"must be a multiple of 512, a disk's sector, not {value}")


@frozen
class AioBlock:
    """How the engine reads and writes the files of an offload."""

    block_size: int = setting(
        1_048_576,
        help="Bytes of a request, in whole sectors of the disk.",
        unit="bytes",
        check=_sectors,
        changes="speed",
        origin="deepspeed",
    )
    queue_depth: int = setting(8, help="Requests under way.", check=above(0), changes="speed", origin="deepspeed")
    intra_op_parallelism: int = setting(
        1,
        help="Threads that share one read or write.",
        check=above(0),
        changes="speed",
        aliases=("thread_count",),
        origin="deepspeed",
    )
    single_submit: bool = setting(
        False, help="Submit requests one by one, not as a batch.", changes="speed", origin="deepspeed"
    )
    overlap_events: bool = setting(
        True, help="Submit without waiting for requests before.", changes="speed", origin="deepspeed"
    )


@frozen
class AioSection:
    """Asynchronous access to files (libaio). Acts where ZeRO offloads to nvme."""

    aio: AioBlock = setting(AioBlock(), help="Block of file access settings.", changes="speed", origin="deepspeed")
