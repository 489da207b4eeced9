"""Ranks that found different checkpoints to start from: two processes over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neox_core.checkpoint.agree import agree_on_step
from neox_core.parallel.groups import Groups

pytestmark = pytest.mark.ranks

RANK = """
import json, sys
import torch, torch.distributed as dist
from types import SimpleNamespace
from neox_core.errors import CheckpointError
from neox_core.checkpoint.agree import agree_on_step

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
groups, cpu, seen = SimpleNamespace(world=dist.group.WORLD), torch.device("cpu"), {}
for steps in ((4, 4), (-1, -1), (4, 5), (4, -1)):
    try:
        seen[str(steps)] = agree_on_step(steps[rank], groups, cpu)
    except CheckpointError as error:
        seen[str(steps)] = str(error)
dist.barrier()
dist.destroy_process_group()
print(json.dumps(seen), flush=True)
import os; os._exit(0)
"""


def test_ranks_start_from_one_step_or_not_at_all(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, env=environment
        )
        for rank in range(2)
    ]
    seen = [json.loads(each.communicate(timeout=60)[0]) for each in ranks]
    said = "ranks found checkpoints of different steps: rank 0: 4, rank 1: "
    for each in seen:
        assert each["(4, 4)"] is each["(-1, -1)"] is None
        assert each["(4, 5)"].startswith(f"{said}5")
        assert each["(4, -1)"].startswith(f"{said}none")


def test_one_rank_agrees_with_itself() -> None:
    alone = Groups(world=None, data=None, data_rank=0, data_size=1)
    assert agree_on_step(7, alone, None) is None  # type: ignore[arg-type, func-returns-value]  # no groups
