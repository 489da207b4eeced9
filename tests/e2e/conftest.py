"""Scripts of this folder that make ranks, in a process of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BOUND_S = 1200
"""A script that hangs ends here; a slow machine that compiles a kernel does not."""
TOLD_S = 3
"""How long the processes of a script have to say where they hang, and to end."""


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
    """Run a command in a process group of its own; where it outlives its bound, ask for stacks, then kill the group.

    What it says goes to a file: a process that leaves the group could hold a pipe open for ever.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(argv, env=env, stderr=said, start_new_session=True)
        late = ""
        try:
            process.wait(bound_s)
        except subprocess.TimeoutExpired:
            late = f"still running after {bound_s:.0f} s; killed\n"
            signal_group(process.pid, signal.SIGUSR1)  # layouts.py and drive.py print their stacks then
            time.sleep(min(TOLD_S, bound_s))
        finally:
            if process.returncode != 0:  # also the ranks that a failed script has left, and at Ctrl-C
                signal_group(process.pid, signal.SIGKILL)
                process.wait(TOLD_S)
        said.seek(0)
        told = said.read()
    if process.returncode != 0:
        pytest.fail(late + told[-6000:], pytrace=False)


def signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
