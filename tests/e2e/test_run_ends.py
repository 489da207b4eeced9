"""What ends a run before its last step: faults of ranks, stops, numbers that are not finite."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from toy_runs import LONG, PLAIN, Run, make_toy

from neox_core.interpreter import STOP_SIGNALS

pytestmark = [pytest.mark.ranks, pytest.mark.deadline]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


def test_a_rank_killed_is_named_and_the_others_are_stopped(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN)
    run.wait_for_step(5)
    ranks = run.ranks()
    assert sorted(ranks) == [0, 1]
    ranks[1].kill()
    code, _, err = run.end()
    assert code == 6
    assert "rank 1: was killed by SIGKILL" in err
    assert "Traceback (most recent call last):\n  File" not in err  # the host's own
    assert not ranks[0].is_running()


@pytest.mark.parametrize(
    ("fault", "said"),
    [("raise", "ZeroDivisionError: planted in the activation"), ("segfault", "was killed by SIGSEGV")],
)
def test_a_rank_that_dies_by_itself_is_named_with_its_last_lines(toy, tmp_path, fault, said):
    run = Run(toy, tmp_path, *LONG, PLAIN, "activation=faulty", FAULT=fault)
    code, _, err = run.end()
    assert code == 6
    assert f"error: rank 1: {said}" in err
    assert re.search(r"\n  \| .*part\.py", err)  # the last lines of its log lead to the place
    assert json.loads((run.save / "failure.json").read_text())["rank"] == 1


PATIENT = "stall-timeout=6"
BEHIND = ("checkpoint.background=true", "save-interval=1")


def test_a_rank_that_hangs_is_named_with_the_stacks_of_all(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN, PATIENT, "activation=faulty", FAULT="hang")
    code, _, err = run.end()
    assert code == 6
    assert re.search(r"error: rank 1: made no progress for \d+ s after step \d+\n", err), err
    assert re.search(r"\n  \|   File \".*part\.py\", line \d+ in __call__\n", err), "the place comes first"
    hangs, waits = ((run.save / "logs" / f"rank{rank}.log").read_text() for rank in (1, 0))
    assert "part.py" in hangs
    assert re.search(r"thread 0x.*\n  File .*neox_core/parallel/.* in wait_for\n", waits, re.IGNORECASE)
    reports = [json.loads((run.save / f"failure.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [report["lost_peer"] for report in reports] == [True, False]


def test_a_stop_that_could_not_save_says_so(toy, tmp_path):
    """The process of rank 1 is stopped as a debugger or a failing host would: it neither trains nor answers."""
    run = Run(toy, tmp_path, *LONG, PLAIN, PATIENT, "extra-save-iters=[5]")
    run.wait_for_step(10)
    ranks = run.ranks()
    ranks[1].suspend()
    time.sleep(0.5)
    run.process.terminate()
    code, out, err = run.end()
    assert code == 6, out
    assert re.search(
        r"error: rank 1: was asked to stop, could not save, and made no progress .*: its process is stopped", err
    )
    saved = max(out[at : at + 13] for at in (found.start() for found in re.finditer(r"step-\d{8}", out)))
    assert f"`--resume auto` continues from {run.save / saved};" in err
    assert not any(rank.is_running() for rank in ranks.values())


def test_a_run_whose_agent_was_told_to_stop_is_not_done(toy, tmp_path):
    """As Slurm does when it preempts a job: the command gets no signal."""
    run = Run(toy, tmp_path, *LONG, PLAIN)
    run.wait_for_step(5)
    run.ranks()[1].parent().terminate()
    code, out, err = run.end()
    assert code == 130, err
    stopped = int(re.search(r"stopped after step (\d+)", out)[1])
    assert (run.save / "latest").read_text().split()[0] == f"step-{stopped:08d}"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_of_a_run_that_was_suspended_is_heard(toy, tmp_path, ranks, started_as_ever):
    """As Slurm ends a job that it had suspended: the system gives the signal to any thread that takes it."""
    run = Run(toy, tmp_path, *LONG, PLAIN, f"num_gpus={ranks}")
    run.wait_for_step(5)
    command = psutil.Process(run.process.pid)
    waiting = [command, *(command.children() if ranks == 1 else ())]  # with more ranks the agent looks again and again
    for process in waiting:
        for thread in {each.id for each in process.threads()} - {process.pid}:
            status = Path(f"/proc/{process.pid}/task/{thread}/status").read_text()
            blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
            assert all(blocked >> (number - 1) & 1 for number in STOP_SIGNALS), status
    for process in waiting:
        process.suspend()
    command.terminate()
    for process in waiting:
        process.resume()
    code, out, err = run.end()
    assert code == 130, err
    assert re.search(r"saved \S*step-\d+", out)


@pytest.mark.parametrize(
    "sets",
    [
        (PLAIN,),
        (PLAIN, "model-parallel-size=2"),
        ("engine=deepspeed", "zero_optimization.stage=1"),
        ("engine=deepspeed", "pipe-parallel-size=2"),
    ],
    ids=["plain", "tensor", "zero-1", "pipe"],
)
def test_a_run_that_was_suspended_for_longer_than_ranks_wait_for_each_other_trains_on(toy, tmp_path, sets):
    """The half hour of torch's groups is four seconds here, while the run is built."""
    run = Run(toy, tmp_path, *LONG, *sets, "activation=faulty", FAULT="short waits")
    run.wait_for_step(10)
    command = psutil.Process(run.process.pid)
    everyone = [command, *command.children(recursive=True)]
    for process in everyone:
        process.suspend()
    time.sleep(6)
    before = max(run.losses())
    for process in everyone:
        process.resume()
    run.wait_for_step(before + 20)
    command.terminate()
    code, out, err = run.end()
    assert code == 130, err
    assert re.search(r"saved \S*step-\d+", out)


def test_a_stop_completes_the_checkpoint_that_is_being_written(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN, *BEHIND)
    run.wait_for_step(5)
    everyone = psutil.Process(run.process.pid).children(recursive=True)
    run.process.terminate()
    code, out, err = run.end()
    assert code == 130, err
    stopped = int(re.search(r"stopped after step (\d+)", out)[1])
    assert (run.save / "latest").read_text().split()[0] == f"step-{stopped:08d}"
    told = [int(step) for step in re.findall(r"saved \S*step-(\d+) in \d+\.\d s, of which training waited", out)]
    assert told == [*range(1, stopped + 1)]
    assert psutil.wait_procs(everyone, timeout=20)[1] == []


def test_checkpoints_are_said_in_the_order_of_their_steps(toy, tmp_path):
    """The last one is waited for: the one before was said behind it, when the run looked next."""
    code, out, err = Run(toy, tmp_path, PLAIN, *BEHIND, "train-iters=4").end()
    assert code == 0, err
    assert [int(step) for step in re.findall(r"saved \S*step-(\d+)", out)] == [1, 2, 3, 4]


def test_a_stop_before_training_says_that_nothing_was_saved(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN)
    end = time.monotonic() + 60
    while len(run.ranks()) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    run.process.terminate()
    code, _, err = run.end()
    assert (code, "no checkpoint was written" in err) == (130, True), err


def test_a_loss_that_is_not_finite_stops_the_run_at_its_step(toy, tmp_path):
    sets = ("optimizer.params.lr=1.0e+30", "gradient_clipping=0", "log-interval=7")
    code, out, err = Run(toy, tmp_path, *sets).end()
    assert code == 6
    step = int(re.search(r"error: the loss is (?:nan|inf) at step (\d+) on rank 0, 1\b", err)[1])
    assert 2 <= step <= 7
    assert "Traceback" not in err
    assert "saved" not in out


def test_a_gradient_that_is_not_finite_is_an_error_with_its_rank_and_parameter(toy, tmp_path):
    """The loss is finite and stays so, since no update is made: the run would end with 0, having computed nothing."""
    sets = ("activation=faulty", "log-interval=40", "save-interval=5")
    run = Run(toy, tmp_path, *sets, FAULT="infinite gradient")
    code, out, err = run.end()
    assert code == 6, out
    found = re.search(
        r"error: the gradient is not finite at step (\d+) on rank 1: of layers\.1\.mlp\.\S+ and \d+ more\n", err
    )
    assert found, err
    assert "on-nonfinite-loss: skip" in err
    assert "Traceback" not in err
    saved = [int(step) for step in re.findall(r"saved \S*step-(\d+)", out)]
    assert all(step < int(found[1]) for step in saved)


def test_a_run_that_computes_nothing_ends_with_an_error(toy, tmp_path):
    sets = ("optimizer.params.lr=1.0e+6", "gradient_clipping=0", "on-nonfinite-loss=skip")
    run = Run(toy, tmp_path, *sets, "max-skipped-steps=7", "save-interval=3", "log-interval=40", "num_gpus=1")
    code, out, err = run.end()
    assert code == 6, out
    assert re.search(
        r"error: no update was made in 8 steps in a row: .* not finite since step \d+ on rank 0: of ", err
    ), err
    assert "max-skipped-steps is 7" in err


def test_an_error_in_the_data_is_said_once_with_its_exit_code(toy, tmp_path):
    code, _, err = Run(toy, tmp_path, PLAIN, "padded-vocab-size=32").end()
    assert code == 4, err
    assert err.count("is not among the model's 32") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("killed", ["host", "launcher"])
def test_no_process_outlives_the_one_that_started_it(toy, tmp_path, killed):
    """A second Ctrl-C kills the launcher; a scheduler or a full memory may kill anything."""
    run = Run(toy, tmp_path, *LONG, PLAIN, *BEHIND)
    run.wait_for_step(5)
    host = psutil.Process(run.process.pid)
    (launcher,) = host.children()
    everyone = host.children(recursive=True)
    assert len(everyone) == 5  # of each rank, the process that writes its checkpoints too
    (host if killed == "host" else launcher).kill()
    _, alive = psutil.wait_procs(everyone, timeout=20)
    assert alive == []
    code, _, err = run.end()
    if killed == "launcher":
        assert code == 6
        assert re.search(r"launcher neox-launchers:local \S+ was killed by signal 9 .*memory", err)


def test_a_rank_that_cannot_leave_a_report_still_says_what_is_wrong(tmp_path):
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "neox_core.run.rank", str(tmp_path / "gone" / "run.json")]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
