"""The machine: processors, memory, limits, names, ports, compilers, and the folder that checkpoints go to."""

from __future__ import annotations

import ctypes.util
import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from neox_core.files import lock
from neox_doctor.finding import Finding

MIB, GIB = 1 << 20, 1 << 30
MOST_WRITTEN = 64 * MIB
"""Bytes that the speed of a disk is measured with."""
FEW_FILES = 4096
"""Open files: a process has a socket for each of its peers."""
SHM = "/dev/shm"  # noqa: S108
SMALL_SHM = 64 * MIB
"""What a container has by default in /dev/shm; processes that read data pass batches through it."""
SLOW_DISK = 50 * MIB
"""Bytes a second."""


def examine_machine(save: Path | None, port: int) -> Iterator[Finding]:
    """Findings about this machine. save: the folder of checkpoints. port: where the ranks of a run meet."""
    yield _processors()
    yield _memory()
    yield from _limits()
    yield _shared_memory()
    yield _name()
    yield _port(port)
    yield from _tools()
    if save is not None:
        yield from _folder(save)


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0))
    return Finding("ok", "processors", f"{usable} of {os.cpu_count()} may be used, {platform.machine()}")


def _memory() -> Finding:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    found = f"{total / GIB:.1f} GiB, {free / GIB:.1f} of it unused"
    limit = _container_limit()
    if limit is not None and limit < total:
        return Finding("ok", "memory", f"{found}; a container may use {limit / GIB:.1f} GiB")
    return Finding("ok", "memory", found)


def _container_limit() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(file).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return None


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft}, at most {hard}"
    hint = f"`ulimit -n {hard if hard > 0 else 65536}`, or LimitNOFILE= of the service that starts jobs"
    few = 0 <= soft < FEW_FILES
    yield Finding("warning" if few else "ok", "open files", found, hint if few else "")
    for name, number in (("address space", resource.RLIMIT_AS), ("processes", resource.RLIMIT_NPROC)):
        soft = resource.getrlimit(number)[0]
        low = number == resource.RLIMIT_AS and 0 <= soft < 8 * GIB
        shown = "no limit" if soft < 0 else str(soft)
        yield Finding(
            "warning" if low else "ok", name, shown, "torch alone needs some GiB: raise `ulimit -v`" if low else ""
        )


def _shared_memory() -> Finding:
    try:
        size = shutil.disk_usage(SHM).total
    except OSError as error:
        return Finding("warning", SHM, str(error.strerror), "mount it, or set num-workers: 0")
    small = size <= SMALL_SHM
    hint = "start the container with --shm-size=8g or --ipc=host, or set num-workers: 0"
    return Finding("warning" if small else "ok", SHM, f"{size / GIB:.2f} GiB", hint if small else "")


def _name() -> Finding:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        return Finding("fix", "host name", f"{name}: {error.strerror}", f"give {name} an address in /etc/hosts or DNS")
    if address.startswith("127."):
        hint = "other hosts cannot reach that address: for several hosts, give the name its real one in /etc/hosts"
        return Finding("warning", "host name", f"{name} is {address}", hint)
    return Finding("ok", "host name", f"{name} is {address}")


def _port(port: int) -> Finding:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("", port))
        except OSError as error:
            return Finding("fix", "port", f"{port}: {error.strerror}", "set master_port to a free one")
    return Finding("ok", "port", f"{port} is free")


def _tools() -> Iterator[Finding]:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    hint = "install g++ and ninja: without them a CPU trains slower, and DeepSpeed has no compiled optimizers"
    missing = compiler is None or shutil.which(compiler) is None
    yield Finding(
        "warning" if missing else "ok",
        "compiler",
        "none for C++" if missing else f"{compiler}",
        hint if missing else "",
    )
    asynchronous = ctypes.util.find_library("aio")
    hint = "install libaio-dev to offload to NVMe; nothing else needs it"
    yield Finding(
        "ok" if asynchronous else "warning", "libaio", asynchronous or "not there", "" if asynchronous else hint
    )


def _folder(save: Path) -> Iterator[Finding]:
    """Writes a hidden file and removes it."""
    there = save.resolve()
    while not there.exists() and there != there.parent:
        there = there.parent
    mine = there / f".neox-doctor-{os.getpid()}"
    subject = f"save, {save}"
    try:
        usage = shutil.disk_usage(there)
        size = min(MOST_WRITTEN, usage.free // 4)
        begun = time.perf_counter()
        with mine.open("xb") as file:
            for _ in range(max(1, size // MIB)):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
            speed = file.tell() / (time.perf_counter() - begun)
            lock(file.fileno(), required=True)
        mine.rename(mine.with_suffix(".renamed"))
    except OSError as error:
        hint = "neox needs a folder that it can write, lock and rename in; give another one as `save`"
        yield Finding("fix", subject, f"{error.strerror}", hint)
        return
    finally:
        for left in (mine, mine.with_suffix(".renamed")):
            with suppress(OSError):
                left.unlink()
    slow = speed < SLOW_DISK
    found = f"{usage.free / GIB:.1f} GiB free, written at {speed / MIB:.0f} MiB/s; locks and renaming work"
    yield Finding("warning" if slow else "ok", subject, found, "saving will take long" if slow else "")
