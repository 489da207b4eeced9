"""A cache of arrays that take long to compute, in a file next to the data, named by its inputs.

A file is looked up by the SHA-256 of all its inputs, so a file of other inputs is never used, and it appears complete
or not at all. Processes that need it at the same time wait for the first; on file systems without locks, each
computes the same file, and the last to finish replaces the others'.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neox_core.files import lock, replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = tuple[NDArray[Any], ...]

HEADER_BYTES = 4096
KINDS = {"uint8", "int32", "uint32", "int64"}


def stored(places: Sequence[Path], key: str, compute: Callable[[], Arrays]) -> Arrays:
    """The arrays of `key`, mapped from the first of `places` that has them, else computed and written there.

    places: paths of the file to try, best first. Where none can be written, the arrays stay in memory.
    """
    for path in places:
        arrays = read(path, key)
        if arrays is not None:
            return arrays
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                arrays = read(path, key)  # another process may have finished first
                if arrays is None:
                    _remove_leftovers(path)
                    write(path, key, compute())
                    arrays = read(path, key)
        except OSError:  # read-only, or full
            continue
        if arrays is not None:
            return arrays
    return compute()


def read(path: Path, key: str) -> Arrays | None:
    """Read-only maps of the arrays in `path`; None when it is missing, incomplete, or of another key."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(HEADER_BYTES))
            length = file.seek(0, os.SEEK_END)
        if header["key"] != key or header["bytes"] != length:
            return None
        arrays, start = [], HEADER_BYTES
        for kind, shape in header["arrays"]:
            if kind not in KINDS:
                return None
            array: NDArray[Any] = np.memmap(path, np.dtype(kind), "r", start, tuple(shape)).view(np.ndarray)
            arrays.append(array)
            start += _padded(array.nbytes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(arrays)


def write(path: Path, key: str, arrays: Arrays) -> None:
    """Write `arrays`, none of them empty, to `path` atomically. Raises OSError."""
    length = HEADER_BYTES + sum(_padded(array.nbytes) for array in arrays)
    header = {"key": key, "bytes": length, "arrays": [(array.dtype.name, array.shape) for array in arrays]}
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    with replacing(path, temporary), temporary.open("wb") as file:
        file.write(json.dumps(header).encode().ljust(HEADER_BYTES))
        for array in arrays:
            np.ascontiguousarray(array).tofile(file)
            file.write(bytes(_padded(array.nbytes) - array.nbytes))
        file.flush()
        os.fsync(file.fileno())


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time into the block, where the file system has locks. Raises OSError where it is
    read-only.
    """
    place = path.with_name(f".{path.name}.lock")
    with place.open("ab") as file:
        lock(file.fileno(), wait=True)
        try:
            yield
        finally:
            # a process that waits for the lock still has the file open, and then finds the arrays
            place.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the files of processes that were killed while they wrote."""
    for left in path.parent.glob(f".{path.name}.{socket.gethostname()}.*.tmp"):
        process = left.suffixes[-2].removeprefix(".") if len(left.suffixes) > 1 else ""
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            left.unlink(missing_ok=True)
