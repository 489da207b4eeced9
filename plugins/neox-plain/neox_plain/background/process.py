"""`python -m neox_plain.background.process MEMORY PARENT`: writes what a rank has copied into shared memory.

MEMORY: the descriptor of the memory. PARENT: the process id of the rank, with which this process ends at once.
A line of standard input says where in the memory a job lies; lines of standard output say how far it is. It imports no
torch, so it starts at once and needs little memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neox_core.checkpoint.manifest import WEIGHTS
from neox_core.checkpoint.publish import Ending, cannot_write, complete, not_finite, write_note
from neox_core.checkpoint.seal import Seal
from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import rank_note
from neox_core.terminal import Own, echo

if TYPE_CHECKING:
    from neox_core.contracts.store import StoredCheckpoints

WRITTEN, COMPLETE = "written", "complete"
"""What it says when the files of the rank are written, and when nothing is left to do."""
POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_CHUNK = 1 << 22
_EXPONENTS = {"F64": (np.uint64, 0x7FF << 52), "F32": (np.uint32, 0xFF << 23), "BF16": (np.uint16, 0xFF << 7)}
_EXPONENTS["F16"] = np.uint16, 0x1F << 10
"""Of each type its bits as a number, and those that are all set in nan and inf alone."""


def main() -> None:
    """Write the files that the parent process asks for, line by line on stdin."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    end_with(parent)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # a new job does not take the rank's processor
    for line in sys.stdin:
        first, last = map(int, line.split())
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)  # it may have grown
        _say(**_work(memory, json.loads(memory[first:last])))


def end_with(parent: int) -> None:
    """End this process in the instant in which its parent ends, and not by what asks the parent to stop."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _work(memory: mmap.mmap, job: dict[str, Any]) -> dict[str, str]:
    """What there is to say at its end."""
    folder = Path(job["folder"])
    try:
        try:
            rank_note(folder, job["rank"]).parent.mkdir(exist_ok=True)
            view = memoryview(memory)
            for first, last in job["files"].values():
                check_weights(view[first:last])
            seals = {file: _write(folder / file, view[first:last]) for file, (first, last) in job["files"].items()}
            write_note(folder, job["rank"], seals, job["note"])
            _finish(folder, job)
        except OSError as error:
            raise cannot_write(folder, error) from error
    except CheckpointError as error:
        return {"message": error.message, "hint": error.hint}
    except Exception as error:  # noqa: BLE001 the rank ends the run, with this message
        echo("".join(traceback.format_exception(error)), err=True, end="")
        return {"message": f"{folder}: cannot write the checkpoint: {type(error).__name__}: {error}", "hint": ""}
    return {"at": COMPLETE}


def check_weights(file: memoryview) -> None:
    """Raises CheckpointError for weights that are nan or inf in a file of tensors."""
    start = 8 + int.from_bytes(file[:8], "little")
    for key, tensor in json.loads(bytes(file[8:start])).items():
        kind, _, name = key.partition("/")
        if kind not in WEIGHTS or tensor["dtype"] not in _EXPONENTS:
            continue
        bits, exponent = _EXPONENTS[tensor["dtype"]]
        first, last = (start + offset for offset in tensor["data_offsets"])
        for at in range(first, last, _CHUNK):
            numbers = np.frombuffer(file[at : min(at + _CHUNK, last)], bits)
            if np.any(numbers & bits(exponent) == exponent):
                raise not_finite(name.partition("#")[0])


def _write(path: Path, data: memoryview) -> Seal:
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        for first in range(0, len(data), _CHUNK):
            part = data[first : first + _CHUNK]
            digest.update(part)
            while part:
                part = part[file.write(part) :]
        os.fsync(file.fileno())
    return Seal(len(data), digest.hexdigest())


def _finish(folder: Path, job: dict[str, Any]) -> None:
    """Upload the files of the rank, where there is a store; the first rank's makes a checkpoint of all ranks' files."""
    store = _open(job["store"])
    if store is not None:
        store.upload(folder, job["rank"])
    _say(at=WRITTEN)
    if job["ending"] is not None:
        ending = Ending(**job["ending"])
        for rank in range(ending.world_size):
            while not _has_note(store, folder, rank):
                time.sleep(POLL_S)
        complete(ending, store)
    if store is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _open(given: dict[str, Any] | None) -> StoredCheckpoints | None:
    if given is None:
        return None
    from neox_core.plan.runfile import ComponentRef, StorePlan
    from neox_core.plan.stored.stores import open_store

    store = open_store(StorePlan(given["url"], ComponentRef(**given["component"]), given["folder"]))
    store.token = given["token"]
    return store


def _has_note(store: StoredCheckpoints | None, folder: Path, rank: int) -> bool:
    """Whether a rank has written all of its files."""
    if store is None:
        return rank_note(folder, rank).exists()
    try:
        store.collect(folder, rank)
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    return True


def _say(**line: str) -> None:
    echo(Own(json.dumps(line)))  # ASCII, for the rank


if __name__ == "__main__":
    main()
