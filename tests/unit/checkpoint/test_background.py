"""Checkpoints that a process of its own writes while the run trains."""

import json
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
import torch
from attrs import evolve
from checkpoint_runs import CONTEXT, Run, resuming, with_checkpoint
from neox_plain.background.memory import GRAIN, SharedMemory, expected_bytes, free_memory
from neox_plain.background.process import check_weights

from neox_core.checkpoint.checkpointer import find_checkpoint
from neox_core.checkpoint.manifest import WEIGHTS
from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.tensor_file import layout
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import RunPlan
from neox_core.plan.stored.saved import step_folders

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture
def behind(plan: RunPlan) -> RunPlan:
    return with_checkpoint(plan, background=True)


def files(folder: Path) -> dict[str, bytes]:
    """The files of tensors, and what manifest.json and state.json say of them."""
    content = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"}
    manifest = json.loads((folder / "manifest.json").read_text())
    pieces = json.dumps(manifest["pieces"]).encode()
    return {**content, "state.json": (folder / "state.json").read_bytes(), "pieces": pieces}


def test_what_is_written_is_what_a_run_that_waits_writes(behind: RunPlan, tmp_path: Path) -> None:
    run = Run(behind).steps(3)
    assert run.checkpointer.save(run.state) is None
    run.steps(2)  # changes every weight while the copy is written
    run.checkpointer.wait()
    assert os.sched_getscheduler(run.checkpointer._writer._process.pid) == os.SCHED_BATCH
    ((step, shown),) = run.checkpointer.completed()
    waits = Run(with_checkpoint(behind, background=False, save=str(tmp_path / "waits"))).steps(3).save()
    assert (step, files(Path(shown))) == (3, files(waits))
    again = Run(resuming(behind))
    again.load()
    assert again.steps(2).losses == run.losses[3:]
    run.checkpointer.close()
    again.checkpointer.close()


def test_a_second_save_waits_for_the_first_and_old_ones_go(behind: RunPlan) -> None:
    run = Run(with_checkpoint(behind, keep_last=2))
    for _ in range(4):
        run.steps(1).checkpointer.save(run.state)
    run.checkpointer.wait()
    folder = Path(behind.checkpoint.save or "")
    assert [step for step, _ in run.checkpointer.completed()] == [1, 2, 3, 4]
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-00000003", "step-00000004"]
    run.checkpointer.close()


def test_a_rewind_waits_for_the_checkpoint_that_it_goes_back_to(behind: RunPlan) -> None:
    run = Run(behind).steps(2)
    run.load()
    run.steps(2).checkpointer.save(run.state)
    at = run.weights()
    run.steps(3).checkpointer.rewind(run.state)
    assert run.state.step == 2
    assert all(torch.equal(weight, at[name]) for name, weight in run.weights().items())
    run.checkpointer.close()


@pytest.mark.parametrize("plan", ["plain"], indirect=True)
def test_a_kill_at_any_instant_ends_on_the_same_bits(behind: RunPlan, tmp_path: Path) -> None:
    """Each run saves after every step, so nearly all of its time a checkpoint is being written."""
    last, draw = 30, random.Random(0)
    whole = Run(with_checkpoint(behind, save=str(tmp_path / "whole")), width=500)
    began = time.monotonic()
    for _ in range(last):
        whole.steps(1).checkpointer.save(whole.state)
    whole.checkpointer.wait()
    longest_s, kills = time.monotonic() - began, 0
    while kills < 8:
        child = fork_run(behind, last)
        if ends_within(child, draw.uniform(0.02, 0.2) * longest_s) == -signal.SIGKILL:
            kills += 1
        else:  # this machine was faster than before: from the start again
            shutil.rmtree(behind.checkpoint.save or "")
            longest_s /= 2
        for folder in step_folders(Path(behind.checkpoint.save or "")):
            CheckpointReader(folder).verify()
    assert ends_within(fork_run(behind, last), 60) == 0
    folders = [find_checkpoint(Path(each.checkpoint.save or "")) for each in (behind, whole.plan)]
    assert all(folder is not None and folder.name == f"step-{last:08d}" for folder in folders)
    assert files(folders[0] or tmp_path) == files(folders[1] or tmp_path)
    whole.checkpointer.close()


def test_the_process_ends_with_the_rank(behind: RunPlan) -> None:
    entry, exit_ = os.pipe()
    run = Run(behind, width=2000).steps(1)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # a fork has none of the threads that torch believes to have
        run.checkpointer.save(run.state)
        os.write(exit_, str(run.checkpointer._writer._process.pid).encode())
        time.sleep(60)
    writer = int(os.read(entry, 20))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while running(writer) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running(writer)


def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(behind: RunPlan) -> None:
    run = Run(behind).steps(1)
    run.checkpointer.save(run.state)
    run.checkpointer.wait()
    ((_, shown),) = run.checkpointer.completed()
    before = Path(shown)
    resource.prlimit(run.checkpointer._writer._process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    run.steps(1).checkpointer.save(run.state)  # no file of the process may grow beyond, as on a full disk
    failed_within_10_s(run)
    with pytest.raises(CheckpointError, match=r"(?s)cannot write the checkpoint: File too large.*unchanged"):
        run.steps(1).checkpointer.save(run.state)
    assert sorted(path.name for path in before.parent.iterdir()) == ["latest", before.name]
    CheckpointReader(before).verify()
    run.checkpointer.close()


def test_a_process_that_is_killed_ends_the_run(behind: RunPlan) -> None:
    run = Run(behind, width=2000).steps(1)
    run.checkpointer.save(run.state)
    os.kill(run.checkpointer._writer._process.pid, signal.SIGKILL)
    failed_within_10_s(run)
    with pytest.raises(CheckpointError, match="the process that writes checkpoints has ended, with code -9"):
        run.checkpointer.wait()
    assert list(Path(behind.checkpoint.save or "").iterdir()) == []


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_weights_that_are_not_finite_end_the_run_and_take_no_good_ones_place(behind: RunPlan, bad: float) -> None:
    run = Run(with_checkpoint(behind, keep_last=1)).steps(1)
    run.checkpointer.save(run.state)
    run.checkpointer.wait()
    ((_, good),) = run.checkpointer.completed()
    run.steps(1)
    with torch.no_grad():
        run.engine.model.out.weight[-1, -1] = bad
    run.checkpointer.save(run.state)
    failed_within_10_s(run)
    with pytest.raises(CheckpointError, match=r"^out\.weight holds nan or inf: nothing is saved"):
        run.checkpointer.wait()
    assert sorted(path.name for path in Path(good).parent.iterdir()) == ["latest", Path(good).name]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["weight", "master", "state/exp_avg"])
def test_the_process_finds_what_torch_calls_not_finite(dtype: torch.dtype, kind: str) -> None:
    most = torch.finfo(dtype)
    for value in (most.max, most.min, most.smallest_normal, -0.0, torch.nan, -torch.nan, torch.inf, -torch.inf):
        tensor = torch.ones(3, dtype=dtype)
        tensor[2] = value
        text, tensors = layout({f"{kind}/up#1": tensor, "rng/0/torch": torch.ones(1, dtype=torch.uint8)})
        file = memoryview(text + b"".join(each.view(torch.uint8).numpy().tobytes() for each in tensors))
        bad = kind in WEIGHTS and not tensor.isfinite().all()
        with pytest.raises(CheckpointError, match=r"^up holds nan") if bad else nullcontext():
            check_weights(file)


def test_without_memory_for_a_copy_the_run_waits(behind: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_plain.background.writer.free_memory", lambda: 1000)
    run = Run(behind).steps(1)
    CheckpointReader(run.save()).verify()
    said: list[str] = []
    assert not run.checkpointer.attend(said.append)
    assert "too small for a copy" in said[0]


def fill_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "neox-memory"]


def test_unasked_it_is_done_where_a_rank_stores_much(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    unasked = with_checkpoint(plan, background=None)
    run = Run(unasked, width=500).steps(1)
    assert not run.checkpointer.attend(print)
    stored = expected_bytes(run.engine, CONTEXT.groups, optimizer=True)
    assert (run.checkpointer._writer._memory.size, fill_threads()) == (0, [])
    CheckpointReader(run.save()).verify()
    monkeypatch.setattr("neox_plain.background.writer.PAYS", stored)
    again = Run(resuming(unasked), width=500)
    again.load()
    assert not again.steps(1).checkpointer.attend(print)
    assert again.checkpointer._writer._memory.size == 0  # before it is needed
    assert again.checkpointer.save(again.state) is None
    assert again.checkpointer._writer._memory.size >= stored
    again.checkpointer.wait()
    ((_, shown),) = again.checkpointer.completed()
    CheckpointReader(Path(shown)).verify()
    again.checkpointer.close()


@pytest.mark.parametrize("asked", [True, None])
def test_the_last_checkpoint_is_waited_for(plan: RunPlan, asked: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_plain.background.writer.PAYS", 1)
    run = Run(with_checkpoint(evolve(plan, train=evolve(plan.train, train_iters=2)), background=asked), width=500)
    assert run.steps(1).checkpointer.save(run.state) is None
    CheckpointReader(run.steps(1).save()).verify()
    run.checkpointer.close()


def test_unasked_it_leaves_half_of_the_memory_and_says_nothing(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_plain.background.writer.PAYS", 1)
    run, said = Run(with_checkpoint(plan, background=None), width=5000).steps(1), list[str]()
    stored = expected_bytes(run.engine, CONTEXT.groups, optimizer=True)
    monkeypatch.setattr("neox_plain.background.writer.free_memory", lambda: 4 * stored)
    assert run.checkpointer.save(run.state) is None
    run.checkpointer.wait()
    monkeypatch.setattr("neox_plain.background.writer.free_memory", lambda: 3 * stored // 2)
    run = Run(with_checkpoint(plan, background=None), width=5000).steps(2)
    for _ in range(2):
        assert not run.checkpointer.attend(said.append)
        CheckpointReader(run.steps(1).save()).verify()
    assert run.checkpointer._writer._memory.size == 0
    assert [line for line in said if "memory" in line] == []


def test_what_a_rank_took_is_given_back_where_another_has_too_little(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neox_plain.background.writer.PAYS", 1)
    run = Run(with_checkpoint(plan, background=None), width=5000).steps(1)
    before = shared_bytes()
    monkeypatch.setattr(run.checkpointer._writer, "_everywhere", lambda holds: False)
    CheckpointReader(run.save()).verify()
    assert shared_bytes() == before


def shared_bytes() -> int:
    """What this process holds in memory without a name, as the writer takes it."""
    there = [each for each in [*Path("/proc/self/fd").iterdir()] if each.exists()]
    return sum(each.stat().st_size for each in there if "neox-checkpoint" in str(each.readlink()))


def test_the_first_save_finds_its_memory_in_place(behind: RunPlan) -> None:
    run = Run(behind, width=60_000)
    assert not run.checkpointer.attend(print)  # before an update nothing is known of the optimizer's state
    assert run.checkpointer._writer._memory.size == 0
    run.steps(1).checkpointer.attend(print)
    for thread in fill_threads():
        thread.join()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run.checkpointer.save(run.state)
    stored = run.checkpointer._writer._memory.size / resource.getpagesize()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < stored / 4
    run.checkpointer.close()


def test_what_a_rank_expects_to_store_is_nearly_what_it_stores(behind: RunPlan) -> None:
    run = Run(behind, width=2000).steps(1)
    expected = expected_bytes(run.engine, CONTEXT.groups, optimizer=True)
    run.checkpointer.save(run.state)
    run.checkpointer.wait()
    ((_, shown),) = run.checkpointer.completed()
    stored = sum(path.stat().st_size for path in Path(shown).glob("*.safetensors"))
    assert stored - 64 * 1024 < expected <= stored
    run.checkpointer.close()


def test_a_longer_job_maps_no_memory_again() -> None:
    memory = SharedMemory()
    memory.grow(GRAIN - 10)
    mapped = memory._mapped
    memory.grow(GRAIN - 1)
    assert memory._mapped is mapped


def test_what_was_saved_is_told_once(behind: RunPlan) -> None:
    run, said = Run(behind).steps(1), list[str]()
    run.checkpointer.save(run.state)
    run.checkpointer.wait()
    for _ in range(2):
        assert not run.checkpointer.attend(said.append)
    lines = [line for line in said if line.startswith("saved")]
    assert len(lines) == 1
    assert re.fullmatch(r"saved \S*/step-00000001 in \d+\.\d s, of which training waited \d\.\d\d s", lines[0])
    run.checkpointer.close()


def test_the_end_of_a_run_waits_for_its_checkpoint_also_after_an_error(behind: RunPlan) -> None:
    run = Run(behind, width=2000).steps(1)
    run.checkpointer.save(run.state)
    run.checkpointer.close()
    found = find_checkpoint(Path(behind.checkpoint.save or ""))
    assert found is not None
    CheckpointReader(found).verify()


def test_the_memory_that_is_free_is_at_most_that_of_the_host() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total


def train(plan: RunPlan, last: int) -> NoReturn:
    """In a process of its own: continue a run to its end, with a checkpoint after every step."""
    torch.set_num_threads(1)
    run = Run(plan, width=500)
    run.load()
    while run.state.step < last:
        run.steps(1).checkpointer.save(run.state)
    run.checkpointer.wait()
    os._exit(0)


def fork_run(plan: RunPlan, last: int) -> int:
    """A process that resumes the run from its last checkpoint, if any, and trains to step `last`."""
    child = os.fork()
    if child == 0:
        train(resuming(plan, resume="auto"), last)
    return child


def ends_within(child: int, limit_s: float) -> int:
    """How a process ended, which is killed after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def failed_within_10_s(run: Run) -> None:
    """What the loop asks after each step."""
    deadline = time.monotonic() + 10
    while not run.checkpointer.attend(lambda line: None):
        assert time.monotonic() < deadline
        time.sleep(0.01)
