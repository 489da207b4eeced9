"""What a user is told when something is wrong: one message, one way out, one exit code."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn


class NeoxError(Exception):
    """A mistake that the user can mend.

    The CLI prints `message` and `hint` and leaves with `exit_code`; a traceback is shown under `--debug` only.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(NeoxError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


class ConfigError(NeoxError):
    """A configuration that cannot be run as it is written."""

    exit_code = 2


class PluginError(NeoxError):
    """A plugin is missing, broken, incompatible or at odds with another one."""

    exit_code = 3


class DataError(NeoxError):
    """A dataset or tokenizer cannot be read or written."""

    exit_code = 4


class CheckpointError(NeoxError):
    """A checkpoint is not there, not whole, or does not fit the run."""

    exit_code = 5


class RankError(NeoxError):
    """A training process failed."""

    exit_code = 6


def about_a_file(error: BaseException) -> NeoxError | None:
    """What the system says of a file, a folder or a program, as a message for the user; None for any other error."""
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
        f"{names}: {error.strerror}",
        hint="move it away, or see to its permissions; `neox --debug` shows what asks for it",
    )


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run the main function of a process and leave with its exit code.

    A NeoxError is printed as message and hint, Ctrl-C leaves with 130; NEOX_DEBUG=1 lets the traceback through. A
    reader of the output that leaves, as `head` does, ends the process without a word.
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
    except (NeoxError, OSError) as error:
        told = error if isinstance(error, NeoxError) else about_a_file(error)
        if told is None or os.environ.get("NEOX_DEBUG") == "1":
            raise
        sys.stderr.write(f"error: {told}\n")
        return told.exit_code
    except KeyboardInterrupt:
        return 130


def nobody_reads() -> int:
    """Let what is still written go nowhere; the exit code of a process that ends since nobody reads its output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
