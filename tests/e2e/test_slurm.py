"""A job of a real Slurm cluster, from the job script in the README of neox-launchers."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_runs import NEOX, PLAIN, Run, make_toy

ROOT = Path(__file__).parents[2]
LAUNCHERS = ROOT / "plugins" / "neox-launchers"
sys.path.insert(0, str(LAUNCHERS / "tests"))

from clusters import free_ports, real_ways, slurm, stop_daemons  # noqa: E402

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.deadline,
    pytest.mark.skipif(slurm not in dict(real_ways()).values(), reason="needs root, munged, slurmctld and slurmd"),
]
LAST = 60
PLANNED = (PLAIN, "activation=faulty", f"train-iters={LAST}", "log-interval=1", "eval-interval=1000")


def job_script(config: Path, sets: tuple[str, ...]) -> str:
    """That of the README, for two hosts without GPUs and with these settings."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", (LAUNCHERS / "README.md").read_text(), re.DOTALL)
    told = " ".join(f"--set {each}" for each in sets)
    for theirs, mine in (
        ("--nodes 4 --gpus-per-node 8 --exclusive", "--nodes 2 --exclusive"),
        ("slots=8", "slots=1"),
        ("neox train config.yml", f"{NEOX[0]} train {config} {told}"),
        ("--set device=cuda", ""),
    ):
        assert theirs in script
        script = script.replace(theirs, mine)
    return script


def test_a_job_that_is_preempted_twice_ends_at_its_last_step_with_undisturbed_losses(tmp_path, monkeypatch):
    toy = make_toy(tmp_path / "toy")
    daemons = tmp_path / "cluster"
    daemons.mkdir()
    path = os.pathsep.join(filter(None, (str(toy / "plugin"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("FAULT", "slow")  # so that Slurm has time to preempt it
    (port,) = free_ports(1)
    run = Run.__new__(Run)
    run.save = tmp_path / "save"
    meets = ("master_addr=127.0.0.1", f"master_port={port}", "launcher-env=[FAULT]")
    sets = (*PLANNED, "num_gpus=1", f"save={run.save}", *meets)
    (tmp_path / "job.sh").write_text(job_script(toy / "config.yml", sets))

    def slurms(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_until(happened) -> None:
        end = time.monotonic() + 240
        while not happened():
            assert time.monotonic() < end, (slurms("squeue"), [each.read_text() for each in tmp_path.glob("*.out")])
            time.sleep(0.2)

    def state(job: str) -> str:
        return re.search(r"JobState=(\w+)", slurms("scontrol", "show", "job", job))[1]

    def started(job: str) -> bool:
        """Slurm itself waits for two minutes, and sets that time some while after the end."""
        if state(job) == "PENDING":
            slurms("scontrol", "update", f"JobId={job}", "StartTime=now")
        return state(job) == "RUNNING"

    try:
        for name, value in slurm(daemons).items():
            monkeypatch.setenv(name, value)
        job = slurms("sbatch", "--parsable", "--chdir", str(tmp_path), "job.sh").strip()
        for _ in range(2):
            before = max(run.losses(), default=0)
            wait_until(lambda before=before: max(run.losses(), default=0) >= before + 5)
            urgent = slurms("sbatch", "--parsable", "-p", "urgent", "-N", "2", "--exclusive", "--wrap", "true").strip()
            wait_until(lambda urgent=urgent: state(urgent) == "COMPLETED")
            assert state(job) == "PENDING"
            wait_until(lambda: started(job))
        wait_until(lambda: state(job) not in ("PENDING", "RUNNING", "COMPLETING"))
        ended = slurms("scontrol", "show", "job", job)
        counts = {each for each in ended.split() if each.startswith(("JobState", "Restarts"))}
        assert counts == {"JobState=COMPLETED", "Restarts=2"}
    finally:  # a job that is left would run on without its cluster
        subprocess.run(
            ["scancel", "--full", "--signal=KILL", "--user=root"], capture_output=True, timeout=30, check=False
        )
        stop_daemons(daemons)
    (tmp_path / "alone").mkdir()
    undisturbed = Run(toy, tmp_path / "alone", *PLANNED, FAULT="none")
    code, _, err = undisturbed.end()
    assert code == 0, err
    assert run.losses() == undisturbed.losses()
    assert list(run.losses()) == list(range(1, LAST + 1))
