"""Run the process that starts the ranks: pass signals on, wait, report which rank failed and how."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import NeoxError, PluginError, RankError
from neox_core.interpreter import STOP_SIGNALS, start_thread
from neox_core.plan.runfile import STOPPED, UNFINISHED
from neox_core.terminal import Own, echo
from neox_core.untrusted import read_object

STARTED_AT = time.time() - time.process_time()
"""When this process started, unix seconds. Ranks count their start-up time from here."""
SAME_KEYSTROKE_S = 0.5
"""A wrapper (make, uv) passes Ctrl-C on, so one keystroke may arrive twice."""
LAST_LINES = 20
_STACK = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")


class Supervisor:
    """One launcher process in a session of its own, so that a Ctrl-C in the terminal reaches this process only.

    owner: of the command, for messages.
    """

    def __init__(self, command: LaunchCommand, run_dir: Path, owner: str = "the launcher") -> None:
        self.command = command
        self.run_dir = run_dir
        self.owner = owner
        self.asked_at: float | None = None
        self.passed_on = False
        self.killed = False
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Start, wait, judge. Raises what a rank reported.

        Returns 0 when the run has ended as its config says, and 130 when a signal to any process stopped it before.
        """
        for mark in (STOPPED, UNFINISHED):  # a pipe of such a name would be waited for
            (self.run_dir / mark).unlink(missing_ok=True)
        (self.run_dir / UNFINISHED).write_bytes(b"")
        with self._signals(), _terminal(), _passed_on(1) as out, _passed_on(2) as err:
            try:
                env = {**os.environ, **self.command.env}
                env |= {"NEOX_STARTED_AT": f"{STARTED_AT:.3f}", "NEOX_HOST_READY_AT": f"{time.time():.3f}"}
                env |= {"NEOX_SUPERVISOR": str(os.getpid()), "PYTHONSAFEPATH": "1"}  # to watch; for other Pythons
                argv = list(self.command.argv)
                self.process = subprocess.Popen(argv, env=env, stdout=out, stderr=err, start_new_session=True)
            except OSError as error:
                raise RankError(f"{self.owner}: cannot start {self.command.argv[0]}: {error.strerror}") from error
            if self.asked_at is not None:  # a signal while it was being started
                self._pass_on()
            code = self.process.wait()
            failure = read_failure(self.run_dir)  # before ranks that are left behind say that others have gone
        stopped, unfinished = ((self.run_dir / each).exists() for each in (STOPPED, UNFINISHED))
        asked = self.asked_at is not None or stopped or bool(failure and failure.get("asked"))
        if failure is not None and not (asked and killed_by_request(failure)):
            raise failed(failure)
        if asked and (stopped or unfinished):
            if self.killed:
                echo("killed: nothing was saved after the last checkpoint", err=True)
            elif not stopped:
                echo("stopped outside of the training loop: no checkpoint was written", err=True)
            return 130
        hint = f"its command: {show(self.command)}"
        if code != 0:
            raise RankError(f"{self.owner} {_ended(code)}", hint=hint)
        if unfinished:
            raise PluginError(f"{self.owner} ended with exit code 0, but no rank has finished", hint=hint)
        return 0

    @contextmanager
    def _signals(self) -> Iterator[None]:
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()  # by nohup
        before = {signum: signal.signal(signum, self._asked) for signum in STOP_SIGNALS if signum not in ignored}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _pass_on(self) -> None:
        """Ask the launcher to stop: once, and not before there is one."""
        if self.process is not None and not self.passed_on:
            self.passed_on = True
            self.process.terminate()

    def _asked(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked_at is None:
            self.asked_at = now
            self._pass_on()
            with suppress(OSError):
                echo("\nstopping after the current step; press Ctrl-C again to kill", err=True)
        elif self.process is not None and signum == signal.SIGINT and now - self.asked_at > SAME_KEYSTROKE_S:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)  # the ranks notice that their parent is gone, and exit


@contextmanager
def _passed_on(stream: int) -> Iterator[int]:
    """Where the launcher writes in place of 1 or 2. What is not for a terminal is passed on by a thread: a rank would
    end of writing to nobody, as after Ctrl-C in `neox train | tee log`, before it has saved.
    """
    if os.isatty(stream):
        yield stream
        return
    (read, write), (ended, end) = os.pipe(), os.pipe()
    thread = start_thread(_copy, read, ended, stream, name="neox-output")
    try:
        yield write
    finally:
        os.close(write)
        os.close(end)  # a process that is left behind may keep the other pipe open
        thread.join()


def _copy(read: int, ended: int, to: int) -> None:
    while read in select.select([read, ended], [], [])[0] and (data := os.read(read, 1 << 16)):
        with suppress(OSError), os.fdopen(to, "wb", closefd=False) as file:  # nothing reads it
            file.write(data)


@contextmanager
def _terminal() -> Iterator[None]:
    """Until rank 0 writes to the terminal, show what the run waits for; at the end, show the cursor again."""
    shown = sys.stdout.isatty()
    if shown:
        echo(Own("  starting the ranks\r"), end="")
    try:
        yield
    finally:
        if shown:
            echo(Own("\x1b[?25h"), end="")  # a rank that was killed could not do it


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    why = "; the kernel kills a process in this way when memory runs out" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code} ({signal.strsignal(-code)}){why}"


def read_failure(run_dir: Path) -> dict[str, Any] | None:
    """Read failure.json of this run; without one, the report of the rank that failed first, by itself."""
    failure = _read(run_dir / "failure.json")
    if failure is not None:
        return failure
    reports = (_read(file) for file in run_dir.glob("failure.rank*.json"))
    said = [report for report in reports if report is not None]
    return min(said, key=lambda report: (report.get("lost_peer", False), report.get("time", 0.0)), default=None)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return read_object(file, NeoxError)
    except NeoxError:
        return None


def killed_by_request(failure: dict[str, Any]) -> bool:
    """Whether the signal that asked the rank to stop also ended it: it was not training yet."""
    return failure.get("exit_code") in (-signal.SIGTERM, 128 + signal.SIGTERM)


def failed(failure: dict[str, Any]) -> NeoxError:
    """The error to show: a user's mistake as the rank reported it, else the rank, how it ended, and its last lines."""
    message, hint, log = failure.get("message", ""), failure.get("hint", ""), failure.get("log", "")
    if failure.get("users_mistake"):
        error = NeoxError(message, hint=hint)
        error.exit_code = int(failure.get("exit_code", RankError.exit_code))
        return error
    text = f"rank {failure.get('rank')}: {message}"
    lines = last_lines(Path(log)) if log else []
    if lines:
        text += "\n" + "\n".join(f"  | {line}" for line in lines)
    return RankError(text, hint=hint or (f"all of it: {log}" if log else ""))


def last_lines(log: Path) -> list[str]:
    """The last lines of a log; of a stack in it the first lines, which name the position. Reads only its end."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    crash = next((index for index, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    stacks = [index for index, line in enumerate(lines) if _STACK.match(line)]
    first = crash if crash is not None else max(stacks, default=None)  # the last stack is the main thread's
    return lines[-LAST_LINES:] if first is None else lines[first : first + LAST_LINES]


def show(command: LaunchCommand) -> str:
    """The command as one would type it, for reading only."""
    return shlex.join([*(f"{name}={value}" for name, value in sorted(command.env.items())), *command.argv])
