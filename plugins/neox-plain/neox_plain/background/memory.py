"""Shared memory of a rank and the process that writes its checkpoints, and how much of the host's memory is left."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

ALIGNED = 64
"""Bytes; a file of tensors starts at a multiple."""
LEAST_LEFT = 0.1
"""Free memory that a copy leaves, as a share of it."""


class SharedMemory:
    """Anonymous: the kernel frees it when no process has it any more, whichever way they end."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("neox-checkpoint", 0)
        self._mapped = mmap.mmap(-1, 1)
        self.size = 0

    def grow(self, size: int) -> None:
        """Have at least `size` bytes. Raises OSError."""
        if size > self.size:
            os.ftruncate(self.descriptor, size)
            self._mapped = mmap.mmap(self.descriptor, size)
            self.size = size

    def put(self, offset: int, data: bytes) -> int:
        """Copy bytes to `offset`; returns where they end."""
        self._mapped[offset : offset + len(data)] = data
        return offset + len(data)

    def copy(self, offset: int, tensor: Tensor) -> int:
        """Copy the elements of a tensor, of any device, to `offset`; returns where they end."""
        end = offset + int(tensor.numel() * tensor.element_size())
        if tensor.device.type == "cpu" and tensor.is_contiguous() and end > offset:
            # by one thread: memory is the limit, and threads wait for one another where other programs compute
            self._mapped[offset:end] = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        elif end > offset:
            there = torch.frombuffer(self._mapped, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            there.view(tensor.shape).copy_(tensor)
        return end


def free_memory() -> int:
    """Bytes of the host's memory that this process and others of its group may still take."""
    free = [_meminfo()]
    for folder in _groups():
        with suppress(OSError, ValueError):
            limit = int((folder / "memory.max").read_text())
            caches = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used = int((folder / "memory.current").read_text()) - int(caches.get("inactive_file", 0))
            free.append(limit - used)
    return max(0, min(free))


def _meminfo() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(free) << 10


def _groups() -> list[Path]:
    """The cgroups that this process is in, version 2, its own first."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                own = root / path.lstrip("/")
                return [each for each in (own, *own.parents) if each == root or root in each.parents]
    return [root]
