"""Stopping: one rank that is asked stops all of them after the same step, and nothing hangs."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from neox_core.run.stop import StopSignal

pytestmark = [pytest.mark.ranks, pytest.mark.deadline]


def wait_for(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_flag_and_no_exception(signum):
    before = signal.getsignal(signum)
    with StopSignal(None) as stop:
        assert not stop.poll()
        os.kill(os.getpid(), signum)
        wait_for(lambda: stop.asked_by)
        assert stop.poll()
        assert stop.asked_by == signum
    assert signal.getsignal(signum) is before


MANY_FILES = """
    import os, resource, signal, sys, time
    from neox_core.parallel.agreement import Agreement
    from neox_core.run.stop import StopSignal
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048 if hard < 0 else min(2048, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    with StopSignal(None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 5
        while not stop.asked_by and time.monotonic() < end:
            time.sleep(0.01)
        print(stop.poll())
"""


def test_a_rank_with_more_files_than_select_takes_hears_its_signal():
    out, err = python(MANY_FILES).communicate(timeout=30)
    assert (out, err) == ("True\n", "")


def test_other_signals_are_not_taken_for_it():
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda *args: caught.append(1))
    try:
        with StopSignal(None) as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for(lambda: caught)
            time.sleep(0.2)
            assert not stop.poll()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_forked_worker_that_is_terminated_stops_nobody_but_itself():
    with StopSignal(None) as stop:
        up, ready = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready, b"1")
            time.sleep(30)
            os._exit(0)
        os.read(up, 1)
        os.kill(child, signal.SIGTERM)
        time.sleep(0.2)
        asked = stop.asked_by
        os.kill(child, signal.SIGKILL)  # in case it was deaf
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not asked


def python(script, *args, **more):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


STUCK = """
    import hashlib, sys, time
    from neox_core.parallel.agreement import Agreement
    from neox_core.run.stop import StopSignal
    report = lambda error: print("reported:", error.message, flush=True)
    with StopSignal(None, patience_s=1.2, report=report) as stop:
        print("up", flush=True)
        if sys.argv[1] == "stuck":  # in C without the interpreter's lock, as a collective is: no handler runs
            hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)
        if sys.argv[1] == "alive":
            for _ in range(20):
                time.sleep(0.1)
                stop.alive()
        if sys.argv[1] == "busy":
            with stop.busy():
                time.sleep(2)
        print("stopped", stop.poll(), flush=True)
        time.sleep(1.8)
        print("saved", flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("stuck", 6, ["reported: asked to stop, this rank made no progress for 1 s: nothing was saved"]),
        ("alive", 0, ["stopped True", "saved"]),
        ("busy", 0, ["stopped True", "saved"]),
    ],
)
def test_only_a_rank_without_progress_is_ended(kind, code, said):
    process = python(STUCK, kind)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert out.splitlines() == said
    if kind == "stuck":
        assert time.monotonic() - began < 10
        assert "nothing was saved" in err


TOGETHER = """
    import os, sys, time
    import torch.distributed as dist
    from neox_core.parallel.agreement import Agreement
    from neox_core.run.stop import StopSignal
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    with StopSignal(Agreement(dist.group.WORLD)) as stop:
        print("up", flush=True)
        for step in range(1, 10_000):
            time.sleep(0.002 * (rank + 1))
            if stop.poll():
                break
        print("stopped", step, flush=True)
    with StopSignal(Agreement(dist.group.WORLD)) as stop:  # a loop that ends by itself, with an agreement under way
        for step in range(3):
            stop.poll()
    print("ended", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.parametrize("asked", [0, 1])
def test_ranks_stop_after_the_same_step_whoever_is_asked(tmp_path, asked):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [python(TOGETHER, str(rank), str(tmp_path / "store"), env=env) for rank in (0, 1)]
    for rank in ranks:
        assert rank.stdout.readline() == "up\n"
    time.sleep(0.1)
    ranks[asked].terminate()
    outs = [rank.communicate(timeout=30) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outs
    assert outs[0][0] == outs[1][0]
    assert outs[0][0].startswith("stopped ")
    assert outs[0][0].endswith("ended\n")
