"""Shared memory of a rank and the process that writes its checkpoints, and how much of the host's memory is left."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from neox_core.contracts.engine import Storage
    from neox_core.parallel.groups import Groups

ALIGNED = 64
"""Bytes; a file of tensors starts at a multiple."""
LEAST_LEFT = 0.1
"""Free memory that a copy leaves, as a share of it."""
MOST_TAKEN = 0.5
"""Free memory that it takes where nobody has asked for it."""
PAYS = 1 << 28
"""Bytes of a rank from which on it is made without being asked for; less is written in half a second."""
GRAIN = 1 << 20
"""Bytes; memory grows by multiples, since each growth maps all of its pages again."""
_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14; an older kernel refuses it."""


class SharedMemory:
    """Anonymous: the kernel frees it when no process has it any more, whichever way they end."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("neox-checkpoint", 0)
        self._mapped = mmap.mmap(-1, 1)
        self.size = 0

    def grow(self, size: int) -> None:
        """Have at least `size` bytes. Raises OSError."""
        if size > self.size:
            size = -(-size // GRAIN) * GRAIN
            os.ftruncate(self.descriptor, size)
            self._mapped = mmap.mmap(self.descriptor, size)
            self.size = size

    def close(self) -> None:
        """Give it back: the kernel keeps what an open descriptor names."""
        os.close(self.descriptor)
        self._mapped = mmap.mmap(-1, 1)

    def fill(self) -> threading.Thread:
        """Have the kernel get and map all pages, in a thread without the interpreter: a copy finds them there."""
        filling = threading.Thread(target=_populate, args=(self._mapped,), name="neox-memory", daemon=True)
        filling.start()
        return filling

    def put(self, offset: int, data: bytes) -> int:
        """Copy bytes to `offset`; returns where they end."""
        self._mapped[offset : offset + len(data)] = data
        return offset + len(data)

    def copy(self, offset: int, tensor: Tensor) -> int:
        """Copy the elements of a tensor, of any device, to `offset`, by torch's threads; returns where they end."""
        end = offset + int(tensor.numel() * tensor.element_size())
        if end > offset:
            there = torch.frombuffer(self._mapped, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            there.view(tensor.shape).copy_(tensor)
        return end


def _populate(mapped: mmap.mmap) -> None:
    """Leaves what is in the pages, and may fail: then the first copy gets them. A part at a time, since the process
    can map no other memory meanwhile.
    """
    start, advise = ctypes.addressof(ctypes.c_char.from_buffer(mapped)), ctypes.CDLL(None).madvise
    for first in range(0, len(mapped), GRAIN):
        advise(ctypes.c_void_p(start + first), ctypes.c_size_t(GRAIN), _MADV_POPULATE_WRITE)


def expected_bytes(engine: Storage, groups: Groups, *, optimizer: bool) -> int:
    """About how much this rank will store; 0 as long as an optimizer whose state is stored has none."""
    if optimizer and not engine.optimizer.state:
        return 0
    dtypes = {name: parameter.dtype for name, parameter in engine.model.named_parameters()}
    held = [(shard, shard.stepped) for shard in engine.weights]
    for shard in engine.shards if optimizer else ():
        kept = [] if shard.stepped.dtype == dtypes[shard.name] else [shard.stepped]
        of_optimizer = engine.optimizer.state.get(shard.stepped, {}).values()
        held += [(shard, each) for each in (*kept, *of_optimizer) if isinstance(each, Tensor) and each.ndim]
    total = 0
    for shard, tensor in held:
        if shard.stores is not False and engine.stores(shard.name):
            turns = groups.data_size if shard.whole and shard.stores is None else 1
            total += shard.count * tensor.element_size() // turns
    return total


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
