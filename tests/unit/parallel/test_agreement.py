"""All ranks agree on a number at the same step, and none is connected to all others."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.deadline]

RANKS = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # of all ranks, a group that connects nothing
from neox_core.parallel.agreement import Agreement
folder, size, asked, ask_at = Path(sys.argv[1]), *map(int, sys.argv[2:])
rank = next((rank for rank in range(1, size) if not os.fork()), 0)  # forked, they need not import anything again
store = dist.FileStore(str(folder / "store"), size)
dist.init_process_group("fake", store=store, rank=rank, world_size=size)
agreement = Agreement(dist.group.WORLD)
for step in range(1, 40):
    if number := agreement.exchange((rank == asked) + (rank == asked + 1) * 2 if step == ask_at else 0):
        break
agreement.finish()
sockets = sum("socket:" in os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
(folder / f"{rank}").write_text(json.dumps([step, sockets, number]))
store.add("done", 1)
while store.add("done", 0) < size:  # a rank that leaves would take connections of the others with it
    pass
os._exit(0)
"""


def agreed(folder, size, asked, ask_at):
    """[step of the agreement, sockets, number] of each rank; `asked` puts in 1, and the one after it 2."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RANKS, str(folder), *map(str, (size, asked, ask_at))]
    subprocess.run(command, env=env, check=True, timeout=240)
    files = [folder / str(rank) for rank in range(size)]
    return [json.loads(each.read_text()) for each in files]


@pytest.mark.parametrize(
    ("size", "asked", "later", "number"), [(1, 0, 1, 1), (3, 2, 1, 1), (3, 1, 1, 2), (66, 65, 3, 1), (66, 9, 3, 2)]
)
def test_all_ranks_know_the_highest_number_at_the_same_step(tmp_path, size, asked, later, number):
    assert {(step, found) for step, _, found in agreed(tmp_path, size, asked, 5)} == {(5 + later, number)}


def test_a_rank_of_many_is_connected_to_few(tmp_path):
    found = agreed(tmp_path, 100, 57, 2)
    assert {step for step, *_ in found} == {5}
    assert max(sockets for _, sockets, _ in found) == 20  # 9 of its block, 9 of the first ranks, and two that listen
