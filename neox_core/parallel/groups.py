"""Which processes work together: a frozen record that is built once in a rank and passed on, never looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from attrs import frozen

from neox_core.errors import ConfigError, RankError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_core.plan.runfile import ClusterPlan


@frozen
class Groups:
    """This rank's place. A group is None where it would hold one process and nobody initialised torch.distributed.

    world: every rank. data: the ranks that hold the same weights and see different samples.
    """

    world: ProcessGroup | None
    data: ProcessGroup | None
    data_rank: int
    data_size: int
    tensor_rank: int = 0
    tensor_size: int = 1
    pipe_rank: int = 0
    pipe_size: int = 1


def build_groups(cluster: ClusterPlan) -> Groups:
    """The groups of `cluster`; every rank of it is a data-parallel one.

    Raises ConfigError for tensor or pipeline parallelism, which is not built yet, and RankError when the number of
    processes that run is not the number that was planned.
    """
    if cluster.tensor_parallel > 1 or cluster.pipeline_parallel > 1:
        raise ConfigError(
            "tensor and pipeline parallelism are not available yet",
            hint="set model-parallel-size and pipe-parallel-size to 1",
        )
    if not (dist.is_available() and dist.is_initialized()):
        if cluster.world_size != 1:
            raise RankError(f"{cluster.world_size} ranks are planned, and this process runs alone")
        return Groups(world=None, data=None, data_rank=0, data_size=1)
    if dist.get_world_size() != cluster.world_size:
        raise RankError(f"{cluster.world_size} ranks are planned, and {dist.get_world_size()} run")
    world = dist.group.WORLD
    return Groups(world=world, data=world, data_rank=dist.get_rank(), data_size=dist.get_world_size())
