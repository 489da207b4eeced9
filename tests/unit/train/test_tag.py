"""Ranks that disagree on the checkpoint they are about to write: two processes over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neox_core.parallel.groups import Groups
from neox_core.train.tag import agreed_step

RANK = """
import json, sys
import torch, torch.distributed as dist
from types import SimpleNamespace
from neox_core.errors import CheckpointError
from neox_core.train.tag import agreed_step

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
groups, cpu, seen = SimpleNamespace(world=dist.group.WORLD), torch.device("cpu"), {}
for steps in ((4, 4), (4, 5)):
    for mode in ("ignore", "warn", "fail"):
        said = []
        try:
            result = agreed_step(steps[rank], mode, groups, cpu, said.append)
        except CheckpointError as error:
            result = str(error)
        seen[f"{mode} {steps[0] == steps[1]}"] = [result, said]
dist.barrier()
dist.destroy_process_group()
print(json.dumps(seen), flush=True)
import os; os._exit(0)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[object, list[str]]]]:
    """What each of two ranks got, for steps that agree (4, 4) and that do not (4, 5)."""
    store = str(tmp_path_factory.mktemp("store") / "store")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), store], stdout=subprocess.PIPE, env=environment)
        for rank in range(2)
    ]
    return [json.loads(each.communicate(timeout=60)[0]) for each in ranks]


@pytest.mark.parametrize("mode", ["ignore", "warn", "fail"])
def test_ranks_that_agree_go_on_in_silence(seen, mode):
    assert [each[f"{mode} True"] for each in seen] == [[4, []], [4, []]]


def test_ignore_does_not_look(seen):
    assert [each["ignore False"] for each in seen] == [[4, []], [5, []]]


def test_warn_takes_the_first_ranks_and_says_so(seen):
    warning = "warning: ranks are about to save different steps: rank 0: 4, rank 1: 5; the first rank's counts"
    assert [each["warn False"] for each in seen] == [[4, [warning]], [4, [warning]]]


def test_fail_stops_every_rank(seen):
    for each in seen:
        assert each["fail False"][0].startswith("ranks are about to save different steps: rank 0: 4, rank 1: 5")


def test_one_rank_agrees_with_itself(tmp_path: Path):
    alone = Groups(world=None, data=None, data_rank=0, data_size=1)
    assert agreed_step(7, "fail", alone, None, pytest.fail) == 7
