"""Agreement of all ranks on one small number, from step to step: nothing waits, and no device is synchronised."""

from __future__ import annotations

import math
from datetime import timedelta

import torch
import torch.distributed as dist

from neox_core.parallel.groups import wait_for

BLOCK = 64
"""Up to so many ranks agree in one group. Gloo connects each pair of a group, so more of them agree as a tree."""
MOST = 2
"""The highest number. What the first ranks of all blocks have found is told to a block with this added."""


class Agreement:
    """The highest number of any rank, over a tree: blocks of neighbouring ranks, and the first rank of each.

    So a rank holds about 2 * sqrt(ranks) connections. Each stage is read one step after it was started: all ranks know
    of a number one step later, and three steps later where there are several blocks.
    """

    def __init__(self, world: dist.ProcessGroup) -> None:
        count, rank = dist.get_world_size(world), dist.get_rank(world)
        size = count if count <= BLOCK else math.isqrt(count - 1) + 1
        first = rank - rank % size
        self._block = _Highest(range(first, min(first + size, count)))
        self._leaders = _Highest(range(0, count, size)) if size < count and rank == first else None
        self._told = MOST if size < count else 0

    def exchange(self, number: int) -> int:
        """What is known by now, the same on all ranks. Every rank calls it once a step.

        number: of this rank, from 0 to MOST. Raises RuntimeError when a peer is lost.
        """
        found = self._block.read()
        if self._leaders is not None:
            all_found = self._leaders.read()
            number = all_found + MOST if all_found else number
            self._leaders.start(found - MOST if found > MOST else found)
        self._block.start(number)
        return max(0, found - self._told)

    def finish(self) -> None:
        """Wait for what has been started."""
        self._block.read()
        if self._leaders is not None:
            self._leaders.read()


class _Highest:
    """The highest number that any of these ranks has put in; only they make the group."""

    def __init__(self, ranks: range) -> None:
        day = timedelta(hours=12)
        self._group = dist.new_group(list(ranks), timeout=day, backend="gloo", use_local_synchronization=True)
        self._number = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def start(self, number: int) -> None:
        self._number = torch.tensor([number], dtype=torch.int32)
        self._work = dist.all_reduce(self._number, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def read(self) -> int:
        if self._work is not None:
            wait_for(self._work)
        return int(self._number[0])
