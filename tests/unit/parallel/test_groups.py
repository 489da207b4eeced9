"""Groups of one process, of two over gloo, and of numbers of ranks that do not fit."""

import subprocess
import sys

import pytest
import torch.distributed as dist
from attrs.exceptions import FrozenInstanceError

from neox_core.errors import ConfigError, RankError
from neox_core.parallel.groups import Groups, build_groups
from neox_core.plan.runfile import ClusterPlan, Host


def cluster(ranks: int, **changes: int) -> ClusterPlan:
    return ClusterPlan((Host("localhost", ranks),), "cpu", "gloo", "127.0.0.1", 29500, 1, **changes)


def test_alone_there_is_no_group() -> None:
    assert build_groups(cluster(1)) == Groups(world=None, data=None, data_rank=0, data_size=1)


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build_groups(cluster(1)).data_rank = 1


@pytest.mark.parametrize("kind", ["tensor_parallel", "pipeline_parallel"])
def test_what_is_not_built_yet_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="not available yet"):
        build_groups(cluster(2, **{kind: 2}))


def test_two_planned_and_one_alone() -> None:
    with pytest.raises(RankError, match="2 ranks are planned"):
        build_groups(cluster(2))


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
import sys, torch, torch.distributed as dist
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import ClusterPlan, Host
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
groups = build_groups(ClusterPlan((Host("localhost", 2),), "cpu", "gloo", "127.0.0.1", 29500, 1))
total = torch.tensor([10.0 ** groups.data_rank])
dist.all_reduce(total, group=groups.data)
print(groups.data_rank, groups.data_size, int(total))
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_are_one_data_group(tmp_path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path / "store"), str(rank)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0].split() for rank in ranks] == [["0", "2", "11"], ["1", "2", "11"]]
