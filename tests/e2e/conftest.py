"""Scripts of this folder that make ranks, in a process of their own."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import toy_runs

BOUND_S = 1200
"""A script that hangs ends here; a slow machine that compiles a kernel does not."""
TOLD_S = 3
"""How long the processes of a script have to say where they hang, and to end."""


class Warm:
    """A process of warm.py, which runs scripts of this folder without importing anything again."""

    def __init__(self) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("warm.py"))]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = 0
        self.returncode: int | None = None

    def begin(self, argv: list[str], said: str) -> "Warm":
        job = {"argv": argv, "said": said, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "folder": str(Path.cwd())}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        self.pid, self.returncode = self._answer(None), None
        return self

    def wait(self, bound_s: float) -> int:
        if self.returncode is None:
            self.returncode = self._answer(bound_s)
        return self.returncode

    def _answer(self, bound_s: float | None) -> int:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], bound_s)[0]:
            raise subprocess.TimeoutExpired("warm.py", bound_s or 0)
        return int(self.process.stdout.readline())


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    toy_runs.end_all()


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[[str, Path, Any], None]]:
    """`start(script, out, cases)` runs the script; the test fails unless it exits with code 0 within BOUND_S."""
    warm = Warm()

    def start(script: str, out: Path, cases: Any) -> None:
        argv = [str(Path(__file__).with_name(script)), str(out), json.dumps(cases)]
        with tempfile.NamedTemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            bounded(warm.begin(argv, said.name), said, BOUND_S)

    yield start
    warm.process.communicate()  # it ends with its input


@pytest.fixture(scope="session", name="run_bounded")
def run_bounded_fixture() -> Callable[[list[str], float], None]:
    return run_bounded


def run_bounded(argv: list[str], bound_s: float) -> None:
    """Run a command in a process group of its own; where it outlives its bound, ask for stacks, then kill the group.

    What it says goes to a file: a process that leaves the group could hold a pipe open for ever.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        bounded(subprocess.Popen(argv, env=env, stderr=said, start_new_session=True), said, bound_s)


def bounded(process: "subprocess.Popen[bytes] | Warm", said: IO[str], bound_s: float) -> None:
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
