"""A job of a real Slurm cluster, from the job script in the README of neox-launchers."""

import json
import os
import re
import subprocess
import sys
import time
from itertools import groupby
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


ELASTIC = (
    "num_gpus=-1",
    "elasticity.enabled=true",
    "elasticity.max_train_batch_size=8",
    "elasticity.micro_batch_sizes=[4]",
    "elasticity.ignore_non_elastic_batch_info=true",
)


def job_script(command: str, config: Path, sets: tuple[str, ...], nodes: str) -> str:
    """That of the README, for hosts without GPUs and with these settings."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", (LAUNCHERS / "README.md").read_text(), re.DOTALL)
    told = " ".join(f"--set '{each}'" for each in sets)
    for theirs, mine in (
        ("--nodes 4 --gpus-per-node 8 --exclusive", f"--nodes {nodes} --exclusive"),
        ("neox train config.yml", f"{NEOX[0]} {command} {config} {told}"),
        ("--set device=cuda", ""),
        *((("--resume auto", ""),) if command == "elastic" else ()),
    ):
        assert theirs in script
        script = script.replace(theirs, mine)
    return script


class Cluster:
    """A cluster of the nodes `one` and `two`, and the state of its jobs. run: the one that is watched."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run

    def __call__(self, *words: str) -> str:
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def batch(self, *words: str) -> str:
        return self("sbatch", "--parsable", *words).strip()

    def wait_until(self, happened) -> None:
        end = time.monotonic() + 240
        while not happened():
            assert time.monotonic() < end, (self("squeue"), [each.read_text() for each in self.folder.glob("*.out")])
            time.sleep(0.2)

    def state(self, job: str) -> str:
        return re.search(r"JobState=(\w+)", self("scontrol", "show", "job", job))[1]

    def preempt(self, job: str, *words: str, command: str = "true") -> str:
        """Once the run has made more steps, have another job take its hosts, and let it begin again after that."""
        before = max(self.run.losses(), default=0)
        self.wait_until(lambda: max(self.run.losses(), default=0) >= before + 5)
        urgent = self.batch("-p", "urgent", *words, "--exclusive", "--wrap", command)
        self.wait_until(lambda: self.state(urgent) == ("COMPLETED" if command == "true" else "RUNNING"))
        assert self.state(job) == "PENDING"
        time.sleep(2)  # slurmd refuses a job, for good, whose new credential is of the second that revoked the old one
        self.wait_until(lambda: self._started(job))
        return urgent

    def _started(self, job: str) -> bool:
        """Slurm itself waits for two minutes, and sets that time some while after the end."""
        if self.state(job) == "PENDING":  # and it may begin at this moment, which makes the command fail
            now = ("scontrol", "update", f"JobId={job}", "StartTime=now")
            subprocess.run(now, capture_output=True, check=False, timeout=30)
        assert self.state(job) in ("PENDING", "CONFIGURING", "RUNNING")
        return self.state(job) == "RUNNING"

    def end(self, job: str) -> set[str]:
        """How the job ended, and how often it had begun again."""
        self.wait_until(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"))
        ended = self("scontrol", "show", "job", job)
        return {each for each in ended.split() if each.startswith(("JobState", "Restarts"))}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    folder = make_toy(tmp_path / "toy")
    path = os.pathsep.join(filter(None, (str(folder / "plugin"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("FAULT", "slow")  # so that Slurm has time to preempt it
    return folder


@pytest.fixture
def cluster(tmp_path, toy, monkeypatch):
    daemons = tmp_path / "cluster"
    daemons.mkdir()
    run = Run.__new__(Run)
    run.save = tmp_path / "save"
    try:
        for name, value in slurm(daemons).items():
            monkeypatch.setenv(name, value)
        yield Cluster(tmp_path, run)
    finally:  # a job that is left would run on without its cluster
        subprocess.run(
            ["scancel", "--full", "--signal=KILL", "--user=root"], capture_output=True, timeout=30, check=False
        )
        stop_daemons(daemons)


def settings(cluster: Cluster, *more: str) -> tuple[str, ...]:
    (port,) = free_ports(1)
    meets = ("master_addr=127.0.0.1", f"master_port={port}", "launcher-env=[FAULT]")
    return (*PLANNED, f"save={cluster.run.save}", *meets, *more)


def undisturbed(toy: Path, folder: Path, *more: str) -> Run:
    folder.mkdir()
    run = Run(toy, folder, *PLANNED, *more, FAULT="none")
    code, _, err = run.end()
    assert code == 0, err
    assert list(run.losses()) == list(range(1, LAST + 1))
    return run


def test_a_job_that_is_preempted_twice_ends_at_its_last_step_with_undisturbed_losses(toy, cluster, tmp_path):
    script = job_script("train", toy / "config.yml", settings(cluster, "num_gpus=1"), "2")
    (tmp_path / "job.sh").write_text(script)
    job = cluster.batch("--chdir", str(tmp_path), "job.sh")
    for _ in range(2):
        cluster.preempt(job, "-N", "2")
    assert cluster.end(job) == {"JobState=COMPLETED", "Restarts=2"}
    assert cluster.run.losses() == undisturbed(toy, tmp_path / "alone").losses()


@pytest.mark.parametrize("command", ["train", "elastic"])
def test_a_job_that_is_requeued_on_other_numbers_of_hosts_has_undisturbed_losses(toy, cluster, tmp_path, command):
    script = job_script(command, toy / "config.yml", settings(cluster, *ELASTIC), "1-2")
    (tmp_path / "job.sh").write_text(script)
    job = cluster.batch("--chdir", str(tmp_path), "job.sh")
    urgent = cluster.preempt(job, "-w", "two", command="sleep 600")
    cluster("scancel", urgent)
    cluster.preempt(job, "-N", "2")
    assert cluster.end(job) == {"JobState=COMPLETED", "Restarts=2"}
    alone = undisturbed(toy, tmp_path / "alone", *ELASTIC[1:], "num_gpus=1").losses()
    records = [each for each in cluster.run.metrics() if "loss" in each]
    assert [each["step"] for each in records] == list(alone)
    for each in records:
        assert each["loss"] == pytest.approx(alone[each["step"]], abs=1e-6)
    sizes = [int(each["world_size"]) for each in records]
    assert [size for size, _ in groupby(sizes)] == [2, 1, 2]
    (state,) = (json.loads(file.read_text()) for file in cluster.run.save.glob(f"*{LAST}/state.json"))
    kept = state["state"]["callbacks"]["neox-elasticity:elasticity"]["world_sizes"]
    assert [(each["world_size"], each["from_step"]) for each in kept] == [
        (size, step) for step, size in enumerate(sizes) if step == 0 or sizes[step - 1] != size
    ]
