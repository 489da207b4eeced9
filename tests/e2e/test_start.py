"""A script of ranks that hangs: what the test says of it, and that nothing of it is left running."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HANGS = 'echo "2 ranks: Adam-0" >&2; sleep 600 & echo $! > {pid}; wait'


def test_a_script_that_hangs_is_killed_with_its_ranks(tmp_path: Path, run_bounded: Callable[..., Any]) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(pytest.fail.Exception, match=r"still running after 3 s; killed\n2 ranks: Adam-0\n"):
        run_bounded(["sh", "-c", HANGS.format(pid=pid)], 3)
    assert not runs(int(pid.read_text()))


LEAVES = """import os, sys, time
if not os.fork():
    os.setsid()
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os._exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 1])
def test_a_process_that_leaves_the_group_holds_up_nothing(
    tmp_path: Path, run_bounded: Callable[..., Any], code: int
) -> None:
    pid = tmp_path / "pid"
    argv = [sys.executable, "-c", LEAVES, str(pid), str(code)]
    if code:
        with pytest.raises(pytest.fail.Exception):
            run_bounded(argv, 60)
    else:
        run_bounded(argv, 60)
    os.kill(int(pid.read_text()), signal.SIGKILL)


HANGS_IN_PYTHON = """import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1)
def waits_for_ever(): time.sleep(600)
waits_for_ever()
"""


def test_a_script_that_hangs_says_where(run_bounded: Callable[..., Any]) -> None:
    with pytest.raises(pytest.fail.Exception, match="in waits_for_ever"):
        run_bounded([sys.executable, "-c", HANGS_IN_PYTHON], 2)


def runs(pid: int) -> bool:
    """Whether a process is there that is not a zombie, which an init process of a container may leave."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
