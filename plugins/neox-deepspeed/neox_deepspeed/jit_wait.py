"""torch's wait for an extension that another process compiles, with an end: DeepSpeed's ops are such extensions.

A process locks its lock file, and writes into it which kernel it runs on: that kernel ends the lock with the process,
so processes under it know whether the holder is gone. Of a holder on another host nothing is known.
"""

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.errors import ConfigError
from neox_core.files import lock
from neox_core.terminal import echo

if TYPE_CHECKING:
    from torch.utils.file_baton import FileBaton

LONGEST_S = 1800.0
"""A compilation takes a minute or two, on a busy machine ten."""
SAID_AFTER_S = 10.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_BYTES = 512


def acquire(baton: "FileBaton") -> bool:
    """In place of `FileBaton.try_acquire`: also takes over the lock of a process that is gone."""
    path = Path(baton.lock_file_path)
    if _is_left(path, remove=True):
        echo(f"{path}: the process that compiled this op is gone; compiling it again", err=True)
    own = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        _lock(file)
        os.link(own, path)  # nobody sees a lock file that is not locked yet
    except FileExistsError:
        os.close(file)
        return False
    except OSError:  # a file system without locks or links
        os.close(file)
        return _acquire_plainly(baton)
    finally:
        own.unlink()
    baton.fd = file
    return True


def wait(baton: "FileBaton") -> None:
    """In place of `FileBaton.wait`. Raises ConfigError for a lock that a killed compilation has left."""
    path, began, said = Path(baton.lock_file_path), time.monotonic(), False
    while (age := _age(path)) is not None:
        if _is_left(path):
            raise ConfigError(f"{path}: the process that compiled this op has ended too early", hint="start again")
        if age > LONGEST_S:
            raise ConfigError(
                f"{path}: its compilation began {age / 60:,.0f} minutes ago and has not ended: it was probably killed",
                hint="delete this file, and start again",
            )
        if not said and time.monotonic() - began > SAID_AFTER_S:
            echo(f"waiting for another process to compile an op; if there is none, delete {path}", err=True)
            said = True
        time.sleep(baton.wait_seconds)


def _lock(file: int) -> None:
    lock(file, required=True)
    os.write(file, f"{socket.gethostname()} process {os.getpid()} under {_BOOT.read_text()}".encode())


def _acquire_plainly(baton: "FileBaton") -> bool:
    try:
        baton.fd = os.open(baton.lock_file_path, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    return True


def _is_left(path: Path, *, remove: bool = False) -> bool:
    """Whether the process that made a lock file ran under this kernel and is gone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        boot = os.read(file, _MOST_BYTES).decode("utf-8", "replace").rpartition(" under ")[2]
        if not boot or boot != _BOOT.read_text():
            return False
        if not lock(file, required=True) or not os.path.samestat(path.stat(), os.fstat(file)):
            return False  # held, removed, or another process's now
        if remove:
            path.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def _age(path: Path) -> float | None:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
