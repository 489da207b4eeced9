"""Where ZeRO keeps what it offloads to nvme: a folder of the run's own, tried out, and with room reserved.

DeepSpeed reads and writes its files past the page cache and does not check whether that succeeded: on a full disk
it would silently lose numbers. So space is reserved before each first write, and a folder is tried at the start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neox_core.errors import ConfigError
from neox_deepspeed.ops import async_io
from neox_deepspeed.patches import reserving_handles

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_SECTOR = 1024
"""Bytes: what each thread reads or writes is a multiple of it, whatever the size of a tensor."""


def use_own_folders(plan: RunPlan, config: dict[str, Any], rank: int) -> None:
    """Put a folder of this run's and rank's in place of each nvme_path of `config`, empty and tried out.

    Raises ConfigError for a path that is not there or cannot be written, and for a disk that is full or that libaio
    cannot use.
    """
    for block, path in _paths(plan):
        _check_queues(config["aio"])
        folder = _own_folder(plan, path, rank)
        try:
            if not path.is_dir():
                raise FileNotFoundError(0, "no such folder")
            shutil.rmtree(folder, ignore_errors=True)  # of this run, which was killed
            folder.mkdir(parents=True)
            _try_out(folder / "trial", config["aio"])
        except OSError as error:
            raise ConfigError(
                f"zero_optimization.{block}.nvme_path: {path}: {error.strerror or error}",
                hint="set it to a folder with enough space, on a local disk of every host",
            ) from error
        zero = config["zero_optimization"]
        config["zero_optimization"] = {**zero, block: {**zero[block], "nvme_path": str(folder)}}


def remove_own_folders(plan: RunPlan, rank: int) -> None:
    """Give the room back, when this rank has done all that it needs the files for."""
    for _, path in _paths(plan):
        folder = _own_folder(plan, path, rank)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # the last rank of the host does


def reserve(path: str, size: int) -> None:
    """Make a file that has at least `size` bytes on the disk. Raises ConfigError where there is no room for them."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(
            f"{path}: no space for what ZeRO offloads: {error.strerror or error}",
            hint="free some space, set another nvme_path, or offload with device: cpu; then resume",
        ) from error


def _paths(plan: RunPlan) -> Iterator[tuple[str, Path]]:
    for block in ("offload_param", "offload_optimizer"):
        offload = plan.engine.get("zero_optimization", {}).get(block, {})
        if offload.get("device") == "nvme":
            yield block, Path(offload["nvme_path"])


def _own_folder(plan: RunPlan, path: Path, rank: int) -> Path:
    """A folder that is the same for a resumed run, so that a run that is killed repeatedly leaves its files only
    once.
    """
    run = Path(plan.run_dir).resolve()
    return path / f"neox-{run.name}-{sha256(str(run).encode()).hexdigest()[:8]}" / f"rank-{rank:05d}"


def _check_queues(aio: Mapping[str, Any]) -> None:
    """Where the kernel grants no more requests, DeepSpeed would abort. Its three handles have a queue per thread."""
    try:
        most, taken = (int(Path(f"/proc/sys/fs/aio-{name}").read_text()) for name in ("max-nr", "nr"))
    except OSError:
        return
    wanted = 3 * aio["queue_depth"] * (aio["intra_op_parallelism"] + 1)
    if wanted > most - taken:
        raise ConfigError(
            f"aio.queue_depth: a rank asks for {wanted} requests in flight, and the kernel has {most - taken} left",
            hint="lower queue_depth or thread_count, or raise fs.aio-max-nr by sysctl",
        )


def _try_out(path: Path, aio: Mapping[str, Any]) -> None:
    """Write a file as DeepSpeed does and read it back. Raises OSError where it is not the same."""
    handle = reserving_handles(async_io(), reserve)(**aio)
    piece = _SECTOR * aio["intra_op_parallelism"]
    size = ((1 << 20) // piece + 1) * piece // 4
    written, read = (handle.new_cpu_locked_tensor(size, torch.empty(0)).zero_() for _ in range(2))
    torch.arange(1, size + 1, out=written)
    same = (
        handle.async_pwrite(written, str(path), 0) == 0
        and handle.wait() == 1
        and handle.async_pread(read, str(path), 0) == 0
        and handle.wait() == 1
        and torch.equal(written, read)
    )
    path.unlink(missing_ok=True)
    if not same:
        raise OSError(0, "libaio does not read back what it wrote (aio.block_size must be a multiple of 4096)")
