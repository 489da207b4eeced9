"""Asynchronous access to files, for ZeRO's offload to NVMe."""

from typing import Any

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above


def _sectors(instance: Any, field: Any, value: int) -> None:
    if value <= 0 or value % 512:
        raise ValueError(f"must be a multiple of 512, a disk's sector, not {value}")


def _speed(default: Any, *, help: str, **more: Any) -> Any:
    """A setting of how files are accessed."""
    return setting(default, help=help, changes="speed", origin="deepspeed", **more)


@frozen
class AioBlock:
    """How the engine reads and writes the files of an offload."""

    block_size: int = _speed(
        1_048_576, help="Bytes of a request, in whole sectors of the disk.", unit="bytes", check=_sectors
    )
    queue_depth: int = _speed(8, help="Requests in flight.", check=above(0))
    intra_op_parallelism: int = _speed(
        1, help="Threads that share one read or write.", check=above(0), aliases=("thread_count",)
    )
    single_submit: bool = _speed(False, help="Submit requests one by one, not as a batch.")
    overlap_events: bool = _speed(True, help="Submit without waiting for earlier requests.")


@frozen
class AioSection:
    """Asynchronous access to files (libaio), where ZeRO offloads to nvme."""

    aio: AioBlock = _speed(AioBlock(), help="Block of file access settings.")
