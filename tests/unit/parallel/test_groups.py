"""Groups of one process, of two over gloo, and of numbers of ranks that do not fit."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from attrs.exceptions import FrozenInstanceError

from neox_core.errors import RankError
from neox_core.parallel.groups import Groups, build_groups, waiting_long
from neox_core.plan.runfile import ClusterPlan, Host

pytestmark = pytest.mark.ranks


def cluster(ranks: int, **changes: int) -> ClusterPlan:
    return ClusterPlan((Host("localhost", ranks),), "cpu", "gloo", "127.0.0.1", 29500, 1, **changes)


def test_alone_there_is_no_group() -> None:
    assert build_groups(cluster(1)) == Groups(world=None, data=None, data_rank=0, data_size=1)


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build_groups(cluster(1)).data_rank = 1


def test_two_planned_and_one_alone() -> None:
    with pytest.raises(RankError, match="2 ranks are planned"):
        build_groups(cluster(2))


@pytest.mark.parametrize("watched", [True, False])
def test_groups_wait_long_inside_the_block_alone(tmp_path, watched) -> None:
    """Each as long as before behind it: the agreement's group waits longer than those of the layout."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        limits = {dist.new_group([0], timeout=timedelta(hours=hours)): timedelta(hours=hours) for hours in (1, 12)}
        with waiting_long(watched):
            inside = [each._get_backend(torch.device("cpu")).options._timeout for each in limits]
            assert inside == ([timedelta(days=30)] * 2 if watched else [*limits.values()])
        assert {each: each._get_backend(torch.device("cpu")).options._timeout for each in limits} == limits
    finally:
        dist.destroy_process_group()


def test_one_planned_and_another_number_run(tmp_path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        alone = build_groups(cluster(1))
        assert (alone.data_rank, alone.data_size, alone.world) == (0, 1, alone.data)
        with pytest.raises(RankError, match="3 ranks are planned, and 1 run"):
            build_groups(cluster(3))
    finally:
        dist.destroy_process_group()


RANK = """
import json, os, sys, torch.distributed as dist
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import ClusterPlan, Host
size, tensor, pipe = map(int, sys.argv[2:])
rank = next((rank for rank in range(1, size) if not os.fork()), 0)  # forked, they need not import anything again
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
layout = {"tensor_parallel": tensor, "pipeline_parallel": pipe}
groups = build_groups(ClusterPlan((Host("localhost", size),), "cpu", "gloo", "127.0.0.1", 29500, 1, **layout))
members = {
    kind: sorted(dist.get_process_group_ranks(group))
    for kind, group in (
        ("data", groups.data), ("tensor", groups.tensor.group), ("pipe", groups.pipe), ("model", groups.model)
    )
    if group is not None
}
place = [groups.data_rank, groups.data_size, groups.tensor.rank, groups.tensor.size, groups.pipe_rank, groups.pipe_size]
with open(f"{sys.argv[1]}-{rank}", "w") as file:
    json.dump([members, place], file)
dist.barrier()
for _ in range(0 if rank else size - 1):
    assert os.wait()[1] == 0
dist.destroy_process_group()
"""


def places(store: Path, size: int, tensor: int, pipe: int) -> list[tuple[dict[str, list[int]], list[int]]]:
    """Of each rank, the ranks in its groups, and its place in them with their sizes."""
    argv = [sys.executable, "-c", RANK, str(store), str(size), str(tensor), str(pipe)]
    subprocess.run(argv, timeout=60, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [json.loads(Path(f"{store}-{rank}").read_text()) for rank in range(size)]


def test_two_ranks_are_one_data_group(tmp_path: Path) -> None:
    assert places(tmp_path / "store", 2, 1, 1) == [[{"data": [0, 1]}, [rank, 2, 0, 1, 0, 1]] for rank in range(2)]


def test_ranks_that_share_layers_are_neighbours_and_stages_are_far_apart(tmp_path: Path) -> None:
    """Rank 1 of 4 in 2 x 2: the second of those that share the layers of the first stage."""
    found = places(tmp_path / "store", 4, 2, 2)
    assert found[1] == [{"data": [1], "tensor": [0, 1], "pipe": [1, 3], "model": [0, 1, 2, 3]}, [0, 1, 1, 2, 0, 2]]
    assert found[2] == [{"data": [2], "tensor": [2, 3], "pipe": [0, 2], "model": [0, 1, 2, 3]}, [0, 1, 0, 2, 1, 2]]


ONLY_MINE = """
import sys, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import ClusterPlan, Host
dist.init_process_group("fake", store=FakeStore(), rank=5000, world_size=8192)
made, theirs = [], dist.distributed_c10d.new_group
def new_group(ranks, **more):
    made.append(list(ranks))
    return theirs(ranks, **more)
dist.new_group = dist.distributed_c10d.new_group = new_group
hosts = tuple(Host(f"h{each}", 8) for each in range(1024))
plan = ClusterPlan(hosts, "cpu", "fake", "h0", 29500, 1, tensor_parallel=8, pipeline_parallel=4)
build_groups(plan)
print([(len(ranks), 5000 in ranks) for ranks in made])
"""


def test_a_rank_of_many_makes_its_own_groups_and_no_others() -> None:
    """At 8 x 4 on 8,192 ranks there are 3,360 groups of four kinds, and a rank is in one of each."""
    done = subprocess.run([sys.executable, "-c", ONLY_MINE], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[(256, True), (8, True), (4, True), (32, True)]"
