"""How a process becomes another one without `exec`: its signals, modules, streams, command line, and its end."""

import atexit
import ctypes
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import _lru_cache_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn


def let_signals_be() -> None:
    """What a handler in Python answers, as Python has it at its start."""
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(run: Mapping[str, str]) -> NoReturn:
    """Run a module or a script as Python does, to the exit code."""
    code: Any = 0
    try:
        if "mod_name" in run:
            runpy.run_module(run["mod_name"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(run["path_name"], run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException as error:  # noqa: BLE001, this process ends
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename == __file__:
            own = own.tb_next
        sys.excepthook(type(error), error, own)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def drop(module: str) -> None:
    """Forget a module that was imported, also where `from package import module` finds it."""
    package, _, name = module.rpartition(".")
    del sys.modules[module]
    if package in sys.modules:
        vars(sys.modules[package]).pop(name, None)


def forget_results(module: ModuleType) -> None:
    """What functions of a module keep of their calls: neox has no other state of a process."""
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    for each in (module, *classes):
        for value in [*vars(each).values()]:
            if isinstance(value, _lru_cache_wrapper):
                value.cache_clear()


def show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """For those who look for processes by them: a command line and an environment in the place of the template's."""
    at = [int(each) for each in Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[45:49]]
    variables = [f"{key}={value}" for key, value in environment.items()]
    for start, end, lines in ((*at[:2], words), (*at[2:], variables)):
        text = os.fsencode("\0".join(lines))[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def written(fd: int, errors: str) -> Any:
    """As Python has stdout and stderr at its start."""
    stream = open(fd, "w", encoding=sys.stdout.encoding, errors=errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(line_buffering=fd == 2 or stream.isatty())
    return stream


def receive(connection: socket.socket, count: int) -> bytes:
    """So many bytes. Raises EOFError where there are no more."""
    got = b""
    while len(got) < count:
        some = connection.recv(count - len(got))
        if not some:
            raise EOFError
        got += some
    return got
