"""Agreement of ranks: the failure of one rank is raised on every rank, so that none waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups

T = TypeVar("T")


def agree(failure: CheckpointError | None, groups: Groups, device: torch.device) -> None:
    """A barrier that raises on every rank when any rank has a failure: its own, or one that names the other rank."""
    if groups.world is None:
        if failure is not None:
            raise failure
        return
    failed = torch.tensor(-1 if failure is None else dist.get_rank(), device=device)
    dist.all_reduce(failed, dist.ReduceOp.MAX, group=groups.world)
    if failure is not None:
        raise failure
    rank = int(failed)
    if rank >= 0:
        raise CheckpointError(f"rank {rank} could not finish the checkpoint", hint="see its log for the reason")


def agree_on_step(step: int, groups: Groups, device: torch.device) -> None:
    """Raises CheckpointError on every rank when ranks would start from different steps; step -1: from no checkpoint."""
    if groups.world is None:
        return
    mine = torch.tensor([step], device=device)
    steps = [torch.empty_like(mine) for _ in range(dist.get_world_size(groups.world))]
    dist.all_gather(steps, mine, group=groups.world)
    named = [int(each) for each in steps]
    if len(set(named)) > 1:
        first = {each: named.index(each) for each in named}  # of many ranks, one for each step
        listed = ", ".join(f"rank {rank}: {'none' if each < 0 else each}" for each, rank in first.items())
        said = f"ranks found checkpoints of different steps: {listed}"
        raise CheckpointError(said, hint="put `load` and `save` on a disk that all hosts share")


def on_all_ranks(act: Callable[[], T], groups: Groups, device: torch.device) -> T:
    """Do it on this rank, then check that every rank could. Raises CheckpointError on every rank where one has not."""
    try:
        done = act()
    except CheckpointError as error:
        agree(error, groups, device)
        raise
    agree(None, groups, device)
    return done
