"""Scripts of this folder that make ranks, in a process of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BOUND_S = 1500
"""A script that hangs ends here; a slow machine that compiles a kernel does not."""


@pytest.fixture(scope="session")
def start() -> Callable[[str, Path, Any], None]:
    """`start(script, out, cases)` runs the script; the test fails unless it exits with code 0 within BOUND_S."""

    def start(script: str, out: Path, cases: Any) -> None:
        argv = [sys.executable, str(Path(__file__).with_name(script)), str(out), json.dumps(cases)]
        run_bounded(argv, BOUND_S)

    return start


@pytest.fixture(scope="session", name="run_bounded")
def run_bounded_fixture() -> Callable[[list[str], float], None]:
    return run_bounded


def run_bounded(argv: list[str], bound_s: float) -> None:
    """Run a command in a process group of its own; where it outlives its bound, kill all of the group."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            _, told = process.communicate(timeout=bound_s)
            late = ""
        except subprocess.TimeoutExpired:
            late = f"still running after {bound_s:.0f} s; killed\n"
        finally:
            if process.returncode != 0:  # also the ranks that a failed script has left, and at Ctrl-C
                kill_group(process.pid)
        if late:
            _, told = process.communicate()
    if process.returncode != 0:
        pytest.fail(late + told[-4000:], pytrace=False)


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
