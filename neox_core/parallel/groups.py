"""The process groups of a rank: a frozen record that is built once and passed on, never looked up globally.

Ranks are numbered tensor first, then data, then pipeline stage:

    rank = (stage * data_size + data_rank) * tensor_size + tensor_rank

so the ranks that communicate most, those that share each layer, are neighbours on one host, and those that communicate
least, the stages of a pipeline, may be on different hosts. DeepSpeed's `PipeModelDataParallelTopology` has that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from attrs import frozen

from neox_core.errors import RankError
from neox_core.parallel.tensor import ALONE, TensorParallel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_core.plan.runfile import ClusterPlan


@frozen
class Groups:
    """This rank's position and groups. A group is None in a single process without torch.distributed.

    world: every rank. data: the ranks that hold the same weights and see different samples. tensor: those that
    share each layer. pipe: those with the stages that one sample passes through. model: those that together hold one
    copy of the model, tensor times pipe; None where that is one rank.
    """

    world: ProcessGroup | None
    data: ProcessGroup | None
    data_rank: int
    data_size: int
    tensor: TensorParallel = ALONE
    pipe: ProcessGroup | None = None
    pipe_rank: int = 0
    pipe_size: int = 1
    model: ProcessGroup | None = None


def build_groups(cluster: ClusterPlan) -> Groups:
    """The groups of `cluster`. Collective: every rank calls it.

    Raises RankError when the number of running processes differs from the plan.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if cluster.world_size != 1:
            raise RankError(f"{cluster.world_size} ranks are planned, and this process runs alone")
        return Groups(world=None, data=None, data_rank=0, data_size=1)
    if dist.get_world_size() != cluster.world_size:
        raise RankError(f"{cluster.world_size} ranks are planned, and {dist.get_world_size()} run")
    world, rank = dist.group.WORLD, dist.get_rank()
    tensor_size, pipe_size = cluster.tensor_parallel, cluster.pipeline_parallel
    if tensor_size * pipe_size == 1:
        return Groups(world=world, data=world, data_rank=rank, data_size=cluster.world_size)
    data_size, left = divmod(cluster.world_size, tensor_size * pipe_size)
    if left:
        raise RankError(f"{cluster.world_size} ranks cannot be split into copies of {tensor_size} x {pipe_size}")

    def number(stage: int, data: int, tensor: int) -> int:
        return (stage * data_size + data) * tensor_size + tensor

    stages, datas, tensors = range(pipe_size), range(data_size), range(tensor_size)
    stage, mine, part = rank // (tensor_size * data_size), rank // tensor_size % data_size, rank % tensor_size
    data = _group([number(stage, d, part) for d in datas])
    tensor = _group([number(stage, mine, t) for t in tensors])
    pipe = _group([number(s, mine, part) for s in stages])
    model = _group([number(s, mine, t) for s in stages for t in tensors])
    return Groups(
        world=world,
        data=data,
        data_rank=mine,
        data_size=data_size,
        tensor=TensorParallel(tensor, part, tensor_size, cluster.sequence_parallel and tensor_size > 1),
        pipe=pipe,
        pipe_rank=stage,
        pipe_size=pipe_size,
        model=model,
    )


def wait_for(work: dist.Work) -> None:
    """Wait for a collective that was started before: by this function's frame it is seen that a rank waits for others.

    work: what `torch.distributed` returned for `async_op=True`.
    """
    work.wait()


@contextmanager
def waiting_long(watched: bool) -> Iterator[None]:
    """Have all groups of this rank wait a month if a launcher watches it, which leaves out the time of a suspension."""
    world = dist.distributed_c10d
    groups = [*world._world.pg_map] if watched else []  # noqa: SLF001
    before = [each._get_backend(each._device_types[0]).options._timeout for each in groups]  # noqa: SLF001
    for each in groups:
        world._set_pg_timeout(timedelta(days=30), each)  # noqa: SLF001
    yield
    for each, limit in zip(groups, before, strict=True):
        world._set_pg_timeout(limit, each)  # noqa: SLF001


def _group(ranks: list[int]) -> ProcessGroup | None:
    """A group of this rank. Its own ranks alone make it, so the number of groups in the run costs nothing."""
    return dist.new_group(ranks, use_local_synchronization=True)
