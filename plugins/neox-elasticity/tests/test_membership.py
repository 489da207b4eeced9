"""Ranks that are killed and slots that join, in real runs over gloo, against a run that nothing disturbs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neox_author.testing import build, load_only

pytestmark = pytest.mark.ranks

STEPS = 100
CONFIG = f"""\
engine: plain
device: cpu
num-layers: 2
hidden-size: 64
num-attention-heads: 2
seq-length: 64
max-position-embeddings: 64
padded-vocab-size: 128
num-workers: 0
peak-tflops: 1
hidden-dropout: 0.1
optimizer: {{type: Adam, params: {{lr: 1.0e-3}}}}
gradient_clipping: 1.0
train-iters: {STEPS}
eval-interval: 50
eval-iters: 1
log-interval: 1
save-interval: 10
monitors: [jsonl]
split: 90,10,0
elasticity: {{enabled: true, max_train_batch_size: 12, micro_batch_sizes: [1, 2, 3]}}
"""
WAIT_S = 300


def ranks_of(save: Path) -> dict[int, int]:
    """Rank -> process id, of a run that saves in a folder."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            argv = (folder / "cmdline").read_text().split("\0") if folder.name.isdecimal() else []
            if "neox_core.run.rank" in argv and str(save / "run.json") in argv:
                env = dict(each.partition("=")[::2] for each in (folder / "environ").read_text().split("\0"))
                found[int(env["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue
    return found


class Run:
    """`neox elastic`, or `neox train`, in a folder."""

    def __init__(self, folder: Path, command: str, *sets: str) -> None:
        self.folder, self.save = folder, folder / command
        words = [word for each in (f"save={self.save}", *sets) for word in ("--set", each)]
        argv = [sys.executable, "-m", "neox_core", command, str(folder / "run.yml"), *words]
        self.log = (folder / f"{command}.log").open("w")
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(argv, stdout=self.log, stderr=self.log, env=env, start_new_session=True)

    def records(self) -> list[dict[str, Any]]:
        try:
            lines = (self.save / "metrics.jsonl").read_text().splitlines()
        except OSError:
            return []
        return [record for line in lines if line.endswith("}") and "loss" in (record := json.loads(line))]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.save / "elastic.jsonl").read_text().splitlines()]

    def until(self, step: int, ranks: int) -> None:
        """Wait for a step that so many ranks have made."""
        end = time.monotonic() + WAIT_S
        while not any(each["step"] >= step and each["world_size"] == ranks for each in self.records()[-1:]):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.02)

    def ranks(self) -> dict[int, int]:
        return ranks_of(self.save)

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        self.log.close()
        return code

    def said(self) -> str:
        return Path(self.log.name).read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    writer = load_only("neox-data-indexed").find("data backend", "mmap")
    tokens = writer.load()(build(writer)).create(tmp_path / "tokens", 128)
    draw = np.random.default_rng(0)
    for _ in range(100):
        tokens.add_document(draw.integers(0, 128, 200).tolist())
    tokens.close()
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    paths = f"data-path: {tmp_path}/tokens\nhostfile: {tmp_path}/hosts\n"
    (tmp_path / "run.yml").write_text(CONFIG + paths)
    yield tmp_path
    for name in ("elastic", "train"):  # what a failed test has left
        for pid in ranks_of(tmp_path / name).values():
            os.kill(pid, signal.SIGKILL)


def test_a_hostfile_that_is_written_in_pieces_while_the_run_starts(folder: Path) -> None:
    (folder / "hosts").write_text("localhost slots=2\n")
    last = 200  # steps, which take longer than the hostfile
    sets = (f"train-iters={last}", "save-interval=100", "elasticity.max_gpus=3", f"hostfile={folder}/hosts")
    run = Run(folder, "elastic", *sets)
    while not (run.save / "elastic.jsonl").exists():
        assert run.process.poll() is None, run.said()
        time.sleep(0.01)
    with (folder / "hosts").open("w") as file:  # before the run takes signals
        for part in ("localhost slots=", "1", "2\n"):
            file.write(part)
            file.flush()
            time.sleep(0.4)
    assert run.end() == 0, run.said()
    assert [each["step"] for each in run.records()] == [*range(1, last + 1)]
    told = [each["event"] for each in run.events() if each["event"] != "recovered"]
    assert told == ["start", "joined", "start", "end"]
    assert {each["world_size"] for each in run.events() if each["event"] == "start"} == {2, 3}


def test_losses_are_those_of_a_run_that_nothing_disturbs(folder: Path) -> None:
    calm = Run(folder, "train", "include=localhost:0,1")
    assert calm.end() == 0, calm.said()
    draw, run = random.Random(), Run(folder, "elastic")
    run.until(draw.randrange(11, 25), ranks=4)
    os.kill(draw.choice([*run.ranks().values()]), signal.SIGKILL)
    run.until(draw.randrange(30, 40), ranks=3)
    (folder / "hosts").write_text("localhost slots=4  # again\n")  # the slot joins
    assert run.end() == 0, run.said()

    mine, theirs = run.records(), calm.records()
    assert [each["step"] for each in mine] == [*range(1, STEPS + 1)] == [each["step"] for each in theirs]
    assert [each["data_hash"] for each in mine] == [each["data_hash"] for each in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
    assert {each["world_size"] for each in theirs} == {2}
    sizes = [each["world_size"] for each in mine]
    changes = [(size, step) for step, size in enumerate(sizes) if step == 0 or sizes[step - 1] != size]
    assert [size for size, _ in changes] == [4, 3, 4]
    (state,) = (json.loads(file.read_text()) for file in run.save.glob(f"*{STEPS}/state.json"))
    kept = state["state"]["callbacks"]["neox-elasticity:elasticity"]["world_sizes"]
    assert [(each["world_size"], each["from_step"]) for each in kept] == changes

    events = run.events()
    told = [each["event"] for each in events]
    assert [each["world_size"] for each in events if each["event"] == "start"] == [4, 3, 4]
    assert told == ["start", "lost", "restart", "start", "recovered", "joined", "start", "recovered", "end"]
    assert all(0 < each["lost_s"] < WAIT_S for each in events if each["event"] == "recovered")


def test_a_run_without_the_block_starts_again_in_place_as_often_as_it_may(folder: Path) -> None:
    alone = ("elasticity.enabled=false", "train_batch_size=12", "max-restarts=1", "num-gpus=2", "train-iters=60")
    run = Run(folder, "train", *alone)
    run.until(12, ranks=2)
    os.kill(run.ranks()[1], signal.SIGKILL)
    run.until(24, ranks=2)
    os.kill(run.ranks()[0], signal.SIGKILL)
    assert run.end() == 6, run.said()
    steps = [each["step"] for each in run.records()]
    assert steps == [*range(1, len(steps) + 1)]
    told = [json.loads(line) for line in (run.save / "metrics.jsonl").read_text().splitlines()]
    assert [each["restarts"] for each in told if "restarts" in each] == [1.0]
    assert "neox train: started again 1 times, as max-restarts allows" in run.said()
