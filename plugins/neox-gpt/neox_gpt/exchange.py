"""Sums over the tensor-parallel ranks of one host, through memory that they share.

gloo sends them over TCP, which takes several times as long. Each rank copies a part of its tensor into a buffer of its
own, counts it, waits until the others have counted theirs, and adds up all of them in the order of the ranks: every
rank gets the same bits. It has two buffers, in turn: who has seen the next part of all others knows that they have
read the one before.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import select
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neox_core.parallel.tensor import TensorParallel

PART = 1 << 20
"""Bytes of a buffer: with those of the other ranks it stays in the cache."""
LINE = 64
"""Bytes of a cache line; each rank counts in one of its own."""
HEAD = 4096
"""Bytes before the buffers: a number that is known to the ranks alone, and their counts."""
MOST_RANKS = 8
"""More would read more than gloo sends."""
LOOKS = 2000
"""At the counts of another rank, in about a millisecond, before this one sleeps in between."""
PAUSE_S = 50e-6
_COMBINE = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}


class Exchange:
    """What `TensorParallel.exchange` is. memory: of HEAD bytes and two buffers for each rank.

    peers: descriptors of the other ranks' processes, by rank, which it closes; this rank's own is -1.
    """

    def __init__(self, memory: mmap.mmap, peers: Sequence[int], timeout_s: float) -> None:
        self._rank, self._timeout_s = peers.index(-1), timeout_s
        self._ends = [select.poll() for _ in peers]
        for end, peer in zip(self._ends, peers, strict=True):
            if peer >= 0:
                end.register(peer, select.POLLIN)
        self._counts = np.frombuffer(memory, np.int64, HEAD // 8)[LINE // 8 :: LINE // 8]
        buffers = torch.frombuffer(memory, dtype=torch.uint8, offset=HEAD)
        self._buffers = buffers.view(2, len(peers), PART)
        self._count = 0
        weakref.finalize(self, _close, peers)

    @torch.no_grad()
    def __call__(self, x: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        """A new tensor: the sum or the maximum over all ranks. Raises RuntimeError for a rank that has ended."""
        flat = x.contiguous().view(-1)
        total, most = torch.empty_like(flat), PART // x.element_size()
        for part, into in zip(flat.split(most), total.split(most), strict=True):
            self._exchange(part, into, _COMBINE[op])
        return total.view(x.shape)

    def _exchange(self, part: Tensor, into: Tensor, combine: Callable[..., Tensor]) -> None:
        size = part.numel() * part.element_size()
        held = [each[:size].view(part.dtype) for each in self._buffers[self._count % 2]]
        held[self._rank].copy_(part)
        self._count += 1
        self._counts[self._rank] = self._count
        for other in range(len(held)):
            if other != self._rank:
                self._wait(other)
        held[self._rank] = part
        combine(held[0], held[1], out=into)
        for each in held[2:]:
            combine(into, each, out=into)

    def _wait(self, other: int) -> None:
        counts, count = self._counts, self._count
        for _ in range(LOOKS):
            if counts[other] >= count:
                return
            os.sched_yield()
        waited, before = 0.0, time.monotonic()
        while counts[other] < count:
            time.sleep(PAUSE_S)
            now = time.monotonic()
            waited, before = waited + min(now - before, 1.0), now  # time in which the run is suspended does not count
            ended = self._ends[other].poll(0)
            if (ended or waited > self._timeout_s) and counts[other] < count:
                what = "connection closed: its process has ended" if ended else "timed out"
                raise RuntimeError(f"a sum with tensor-parallel rank {other}: {what}")


def on_one_host(tensor: TensorParallel, device: torch.device) -> TensorParallel:
    """`tensor`, whose sums go through shared memory where its ranks are processes of one host. Collective."""
    if tensor.group is None or device.type != "cpu" or not 1 < tensor.size <= MOST_RANKS:
        return tensor
    number, opened = secrets.randbits(62), -1
    # Elsewhere a processor may show a count to others before what was counted.
    if tensor.rank == 0 and hasattr(os, "pidfd_open") and platform.machine() in ("x86_64", "AMD64"):
        with suppress(OSError):
            opened = os.memfd_create("neox-exchange")
            os.ftruncate(opened, HEAD + 2 * tensor.size * PART)
            os.pwrite(opened, number.to_bytes(8, "little"), 0)
    told = torch.tensor([os.getpid(), opened, number])
    rows = [torch.empty_like(told) for _ in range(tensor.size)]
    dist.all_gather(rows, told, group=tensor.group)
    exchange = None
    if rows[0][1] >= 0 and len({int(row[0]) for row in rows}) == tensor.size:  # not threads, as in tests
        with suppress(OSError):
            exchange = _opened(tensor, [row.tolist() for row in rows])
    lacking = tensor.add_up(torch.tensor([exchange is None], dtype=torch.int64))
    if opened >= 0:
        os.close(opened)
    return tensor if lacking.item() else evolve(tensor, exchange=exchange)


def _opened(tensor: TensorParallel, rows: Sequence[Sequence[int]]) -> Exchange | None:
    """Raises OSError where the first rank's memory cannot be opened: it is on another host, or hidden."""
    process, descriptor, number = rows[0]
    opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        if os.pread(opened, 8, 0) != number.to_bytes(8, "little"):
            return None
        memory = mmap.mmap(opened, HEAD + 2 * tensor.size * PART)
    finally:
        os.close(opened)
    peers = [-1 if rank == tensor.rank else os.pidfd_open(row[0]) for rank, row in enumerate(rows)]
    group: Any = tensor.group
    timeout = group._get_backend(torch.device("cpu")).options._timeout  # noqa: SLF001  torch has no public name
    return Exchange(memory, peers, timeout.total_seconds())


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        if each >= 0:
            os.close(each)
