"""Starts Python processes that do not import from the current folder, and threads that take no signals."""

import resource
import signal
import sys
from collections.abc import Callable
from threading import Thread

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_WITHOUT_FOLDER = (
    "import sys; del sys.path[0]; import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python(module: str, *arguments: str, safe_path: bool = sys.version_info >= (3, 11)) -> tuple[str, ...]:
    """The command that runs `python -m module arguments`, for a process that may be started in any folder.

    `-m` alone would import from the current folder first, and would run a `torch.py` there.

    safe_path: whether this Python has the option -P, which child processes inherit; else a line of code does the same.
    """
    if safe_path:
        return (sys.executable, "-P", "-m", module, *arguments)
    return (sys.executable, "-c", _WITHOUT_FOLDER, module, *arguments)


def require_room(mebibytes: int) -> None:
    """Raise MemoryError where the address space is limited to less, since libraries without room end a process."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < mebibytes << 20:
        raise MemoryError(f"this needs at least {mebibytes} MiB of address space, and the limit is {limit >> 20} MiB")


def start_thread(act: Callable[..., object], *args: object, name: str) -> Thread:
    """Start a daemon thread that leaves STOP_SIGNALS to the main one: that of a process which was suspended gets them
    only by luck, and would wait on for what it waits for. The thread starts no process, which would be as deaf.
    """
    thread = Thread(target=act, args=args, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
