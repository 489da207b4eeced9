"""One rank's failure is every rank's: nobody waits for a rank that has given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups


def agree(failure: CheckpointError | None, groups: Groups, device: torch.device) -> None:
    """A barrier that raises on every rank when any rank comes with a failure: its own, or the other's number."""
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
        raise CheckpointError(f"rank {rank} could not finish the checkpoint", hint="its log says why")
