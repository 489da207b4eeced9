"""The hosts and slots of an allocation, as Slurm tells them, and by Slurm itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clusters import real_ways, slurm, stop_daemons
from neox_launchers.allocation import _slots, allocation

from neox_core.config.problem import MisfitError

ASK = "import json, sys; from neox_launchers.allocation import allocation; print(json.dumps(allocation('cpu', 3)))"


@pytest.mark.parametrize(
    ("environ", "device", "slots"),
    [
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS_PER_NODE": "1"}, "cuda", [8, 8, 8]),
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS_PER_NODE": "2"}, "cpu", [2, 2, 2]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}, "cpu", [2, 2, 1]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x999999)"}, "cpu", [2, 2, 2]),
        ({"SLURM_TASKS_PER_NODE": "64(x3)"}, "cpu", [4, 4, 4]),  # of the cores, when no tasks were asked for
        ({"SLURM_NTASKS": "x", "SLURM_TASKS_PER_NODE": "?"}, "cuda", [4, 4, 4]),
    ],
)
def test_slots_are_gpus_then_tasks_then_what_the_config_says(environ, device, slots):
    assert _slots(environ, 3, device, 4) == slots


def test_outside_of_an_allocation_there_are_no_hosts_and_without_scontrol_an_error(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert allocation("cpu", 2) == {}
    monkeypatch.setenv("SLURM_JOB_NODELIST", "one,two")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MisfitError, match="does not say which hosts one,two are"):
        allocation("cpu", 2)


@pytest.mark.ranks
@pytest.mark.skipif("slurm" not in dict(real_ways()), reason="needs root and Slurm")
def test_slurm_tells_its_hosts(tmp_path):
    env = os.environ | slurm(tmp_path)
    try:
        for options, slots in (((), [0, 1, 2]), (("--ntasks-per-node", "1"), [0])):
            command = ["salloc", "--quiet", "--nodes", "2", *options, sys.executable, "-c", ASK]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
            assert json.loads(done.stdout) == {"one": slots, "two": slots}
    finally:
        stop_daemons(tmp_path)
