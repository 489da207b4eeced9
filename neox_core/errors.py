"""Errors for a user: one message, one hint, one exit code."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from neox_core.terminal import echo, paint, printable, readable


class NeoxError(Exception):
    """A mistake that the user can fix.

    The command line prints `message` and `hint` and exits with `exit_code`; it shows a traceback only with `--debug`.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def shown(self) -> str:
        """The error as a user reads it: cut to a readable length, and safe for a terminal."""
        return printable(readable(str(self)))


class UsageError(NeoxError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


class ConfigError(NeoxError):
    """A configuration that cannot be run as it is written."""

    exit_code = 2


class PluginError(NeoxError):
    """A plugin is missing, broken, incompatible or in conflict with another one."""

    exit_code = 3


class DataError(NeoxError):
    """A dataset or tokenizer cannot be read or written."""

    exit_code = 4


class CheckpointError(NeoxError):
    """A checkpoint is missing, incomplete, or does not fit the run."""

    exit_code = 5


class RankError(NeoxError):
    """A training process failed."""

    exit_code = 6


def about_a_file(error: BaseException) -> NeoxError | None:
    """The system's error about a file, a folder or a program, as a message for the user; None for any other error."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        return UsageError(f"a file cannot be written: {error.strerror}", hint="make room")
    if error.filename is None:
        return None
    names = " and ".join(
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
    )
    return UsageError(
        f"{names}: {error.strerror}", hint="move it away, or check its permissions; `neox --debug` shows what needs it"
    )


NO_ROOM = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")
"""Messages of the system's loader about a library that does not fit into memory."""


def in_words(error: BaseException) -> NeoxError | None:
    """The error as a message for the user; None for an error that only the authors can fix."""
    if isinstance(error, NeoxError):
        return error
    no_room = isinstance(error, ImportError) and any(words in str(error) for words in NO_ROOM)
    if isinstance(error, MemoryError) or no_room:
        hint = "raise the limit (`ulimit -v`, a container's, a job's), or give the command less data at once"
        return UsageError("memory ran out" + (f": {error}" if str(error) else ""), hint=hint)
    return about_a_file(error)


def report(error: NeoxError, cause: BaseException | None = None) -> int:
    """Write the error to stderr, with `--debug` also the traceback of its cause. Returns its exit code."""
    if os.environ.get("NEOX_DEBUG") == "1":
        echo("".join(traceback.format_exception(cause or error)), err=True, end="")
    echo(paint("error:", "red", "bold", err=True), " ", error.shown(), err=True)
    return error.exit_code


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run the main function of a process and exit with its code.

    A NeoxError is printed as message and hint, with NEOX_DEBUG=1 also its traceback; Ctrl-C exits with 130. When the
    reader of the output exits, as `head` does, the process ends without a message.
    """
    try:
        code = _run(main)
        sys.stdout.flush()
    except BrokenPipeError:
        code = nobody_reads()
    sys.stderr.flush()
    sys.exit(code)


def _run(main: Callable[[], int | None]) -> int:
    try:
        return main() or 0
    except (NeoxError, OSError, MemoryError, ImportError) as error:
        told = in_words(error)
        if told is None:
            raise
        return report(told, error)
    except KeyboardInterrupt:
        return 130


def nobody_reads() -> int:
    """Discard further output. Returns the exit code of a process that ends because nothing reads its output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
