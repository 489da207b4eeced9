"""What the loop does in which order, told by what it calls."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing.plans import example_plan
from torch import Tensor

from neox_core.checkpoint.resume import RunSchedule
from neox_core.errors import RankError
from neox_core.plan.runfile import RunPlan
from neox_core.plan.stored.state import TrainState
from neox_core.run import loop
from neox_core.run.loop import train


class Log:
    """Engine, report, checkpointer and stop signal in one: every call is a line."""

    def __init__(self, stop_at: int | None = None, bad_at: int | None = None) -> None:
        self.lines: list[str] = []
        self.stop_at = stop_at
        self.bad_at = bad_at
        self.now = 0
        self.optimizer = torch.optim.Adam([torch.zeros(1)], betas=(0.9, 0.95))
        self.betas: list[tuple[float, float]] = []

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        self.betas.append(self.optimizer.param_groups[0]["betas"])
        self.lines.append(f"train batch {int(next(batches))} lr {lr}")
        return torch.tensor(1.0)

    def evaluate(self, batches: Sequence[Tensor]) -> list[Tensor]:
        self.lines.append(f"evaluate {len(batches)}")
        return list(batches)

    def step(self, step: int, loss: Tensor, lr: float, engine: Any) -> None:
        self.now = step
        self.lines.append(f"report {step} lr {lr}")

    def validation(self, step: int, losses: Sequence[Tensor]) -> float:
        self.lines.append(f"validation {step}: {len(losses)}")
        return 0.0

    def check(self) -> None:
        self.lines.append("check")
        if self.bad_at is not None and self.now >= self.bad_at:
            raise RankError("not finite")

    def say(self, message: str) -> None:
        self.lines.append(message)

    def save(self, state: TrainState) -> Path:
        self.lines.append(f"save {state.step} {state.consumed_samples} {state.consumed_tokens}")
        return Path("there")

    def poll(self) -> bool:
        return self.now == self.stop_at


class Tenths:
    """A schedule that also gives a momentum."""

    def __call__(self, step: int) -> float:
        return step / 10

    def options(self, step: int) -> dict[str, Any]:
        return {"betas": (step / 100, 0.99), "momentum": step / 100}


def make_plan(save_interval: int | None = None, **changes: Any) -> RunPlan:
    plan = example_plan(Path("unused"), ranks=(2,))
    return evolve(
        plan,
        train=evolve(plan.train, train_iters=4, **changes),
        checkpoint=evolve(plan.checkpoint, save_interval=save_interval),
    )


def run(log: Log, plan: RunPlan, first: int = 0) -> bool:
    state = TrainState(first, 2 * first, 16 * first)
    batches = (torch.tensor(index) for index in range(100 + first, 200))
    valid = [torch.tensor(0.0)] * plan.train.eval_iters
    schedule = RunSchedule(Tenths(), Tenths(), plan.optim.schedule)
    return train(log, batches, lambda: valid, schedule, log, log, log, state, plan)


def test_options_of_the_schedule_hold_for_the_update_alone() -> None:
    log = Log()
    run(log, make_plan(), first=1)
    assert log.betas == [(0.01, 0.99), (0.02, 0.99), (0.03, 0.99)]
    assert log.optimizer.param_groups[0]["betas"] == (0.9, 0.95)
    assert "momentum" not in log.optimizer.param_groups[0]


def test_the_order_of_a_run() -> None:
    log = Log()
    assert run(log, make_plan(save_interval=2, eval_interval=2, eval_iters=3), first=1) is True
    assert log.lines == [
        "train batch 101 lr 0.1",
        "report 2 lr 0.1",
        "evaluate 3",
        "validation 2: 3",
        "check",
        "save 2 4 32",
        "saved there",
        "train batch 102 lr 0.2",
        "report 3 lr 0.2",
        "train batch 103 lr 0.3",
        "report 4 lr 0.3",
        "evaluate 3",
        "validation 4: 3",
        "check",
        "save 4 8 64",
        "saved there",
    ]


HELD = """
import sys, torch
from neox_core.run.loop import keep_freed_memory

def mib() -> float:
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

def left() -> float:
    before, tensor = mib(), torch.ones(2**24)
    del tensor
    return mib() - before

weights, first, before = torch.ones(2**24), left(), mib()
pieces = [bytearray(1000) for _ in range(2**16)]
last = bytearray(1000)
del pieces
next(keep_freed_memory())
print(first, mib() - before, left())
"""
HOLES = """
from neox_core.run.loop import keep_freed_memory

def mib() -> float:
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

def made() -> list[bytearray]:
    return [bytearray(5000) for _ in range(20_000)]

memory = keep_freed_memory()
next(memory)
used = made()
next(memory)
before, pieces = mib(), made()
some = pieces[::16]
del pieces
for _ in range(2):
    print(mib() - before)
    next(memory)
"""


@pytest.mark.parametrize("chosen", [{}, {"MALLOC_MMAP_MAX_": "65536"}])
def test_memory_that_a_step_frees_is_kept_from_the_second_one_on(chosen: dict[str, str]) -> None:
    """64 MiB in a process with the environment of a rank, before and after, unless the user set what is changed.

    What was freed in pieces before that, as by a compiler, is given back.
    """
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), **chosen}
    done = subprocess.run([sys.executable, "-c", HELD], env=env, check=True, capture_output=True, text=True)
    first, of_pieces, kept = map(float, done.stdout.split())
    assert first < 8
    assert of_pieces > 56 if chosen else of_pieces < 8
    assert kept < 8 if chosen else kept > 56


@pytest.mark.parametrize("chosen", [{}, {"MALLOC_MMAP_MAX_": "65536"}])
def test_holes_that_steps_leave_in_memory_are_given_back(chosen: dict[str, str]) -> None:
    """100 MB of pieces, of which every sixteenth stays, in a process that uses as much."""
    env = {**os.environ, "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), **chosen}
    done = subprocess.run([sys.executable, "-c", HOLES], env=env, check=True, capture_output=True, text=True)
    left, given_back = map(float, done.stdout.split())
    assert left > 90
    assert given_back > 90 if chosen else given_back < 40


@pytest.mark.parametrize(("device", "log_interval", "at"), [("cpu", 100, [1]), ("cpu", 1, [1, 4, 7]), ("cuda", 1, [])])
def test_on_a_cpu_it_is_kept_after_the_first_step_and_looked_at_when_a_step_is_logged(
    monkeypatch: pytest.MonkeyPatch, device: str, log_interval: int, at: list[int]
) -> None:
    log = Log()
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: iter(lambda: log.lines.append("keep"), 0))
    plan = make_plan(log_interval=log_interval)
    run(log, evolve(plan, cluster=evolve(plan.cluster, device=device)), first=1)
    assert [index for index, line in enumerate(log.lines) if line == "keep"] == at


def test_the_last_step_is_saved_whatever_the_interval() -> None:
    log = Log()
    assert run(log, make_plan(eval_interval=0)) is True
    assert [line for line in log.lines if line.startswith("save ")] == ["save 4 8 64"]


def test_step_0_is_saved_on_request_and_once() -> None:
    plan = make_plan(eval_interval=0)
    plan = evolve(plan, checkpoint=evolve(plan.checkpoint, extra_save=(0, 2)))
    fresh, resumed = Log(), Log()
    run(fresh, plan)
    run(resumed, plan, first=1)
    assert fresh.lines[:3] == ["save 0 0 0", "saved there", "train batch 100 lr 0.0"]
    assert [line for line in fresh.lines if line.startswith("save ")] == ["save 0 0 0", "save 2 4 32", "save 4 8 64"]
    assert "save 0 0 0" not in resumed.lines


def test_stopped_by_a_signal_it_saves_and_says_so() -> None:
    log = Log(stop_at=3)
    assert run(log, make_plan(eval_interval=0)) is False
    assert log.lines[-4:] == ["report 3 lr 0.2", "check", "save 3 6 48", "saved there"]


def test_exit_interval() -> None:
    log = Log()
    assert run(log, make_plan(exit_interval=3)) is False
    assert "save 3 6 48" in log.lines
    assert run(log, make_plan(exit_interval=2), first=3) is True


def test_nothing_is_saved_of_a_run_gone_bad() -> None:
    log = Log(bad_at=2)
    with pytest.raises(RankError, match="not finite"):
        run(log, make_plan(save_interval=1, eval_interval=0))
    assert [line for line in log.lines if line.startswith("save ")] == ["save 1 2 16"]


def test_a_finished_run_has_nothing_to_do() -> None:
    log = Log()
    assert run(log, make_plan(), first=4) is True
    assert log.lines == []
