"""The folder of the vectors of all blocks: one safetensors file and a JSON file that says what they are of.

While it is written, the file has its full length and the name `vectors.part`, and `done` has a byte for each block
that is in it. So a rank needs the memory of one batch, and an index that was killed continues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import asdict, frozen
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from neox_core.errors import DataError, UsageError
from neox_core.files import replacing
from neox_core.untrusted import read_object, strict_converter, structured

FILE, PART, DONE, FACTS = "vectors.safetensors", "vectors.part", "done", "blocks.json"
KEY = "vectors"
SLICE = 1 << 16
"""Vectors that a search reads at once."""
AGAIN = "make it again with `neox retrieval index`"


@frozen
class Facts:
    """What vectors are of: their number, their width, and texts that identify the model and the blocks."""

    blocks: int
    size: int
    model: str
    documents: str


class Unfinished:
    """Vectors that are being written, by several ranks at once: each writes other blocks."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        self.folder, self.facts = folder, facts
        self._start = len(_header(facts))
        self._vectors = os.open(folder / PART, os.O_RDWR)
        self._done = os.open(folder / DONE, os.O_RDWR)

    def pending(self) -> NDArray[np.int64]:
        """The numbers of the blocks that have no vector yet."""
        done = np.fromfile(self.folder / DONE, dtype=np.uint8, count=self.facts.blocks)
        return np.flatnonzero(done == 0)

    def write(self, numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Write the vectors of some blocks, and then that they are there."""
        runs = np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) != 1) + 1)
        for run in runs:
            first = int(numbers[run[0]])
            data = np.ascontiguousarray(vectors[run], dtype="<f4").tobytes()
            _write_all(self._vectors, data, self._start + 4 * self.facts.size * first)
        os.fsync(self._vectors)
        for run in runs:
            _write_all(self._done, b"\x01" * len(run), int(numbers[run[0]]))

    def finish(self) -> None:
        """Give the file its name. Raises DataError where a block is missing."""
        left = len(self.pending())
        if left:
            raise DataError(f"{self.folder}: {left:,} blocks have no vector", hint="run `neox retrieval index` again")
        (self.folder / PART).replace(self.folder / FILE)
        (self.folder / DONE).unlink()

    def close(self) -> None:
        os.close(self._vectors)
        os.close(self._done)


def begin(folder: Path, facts: Facts) -> bool:
    """Make the files of vectors, unless those of the same facts are there. Returns whether all of it is finished.

    Called on one rank. Raises UsageError for a folder that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _known(folder) == facts:
            if (folder / FILE).is_file() and not (folder / PART).exists():
                read_vectors(folder, facts)
                return True
            if _whole(folder, facts):
                return False
        for name in (FACTS, FILE, DONE, PART):
            (folder / name).unlink(missing_ok=True)
        header = _header(facts)
        with (folder / PART).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + 4 * facts.size * facts.blocks)
        with (folder / DONE).open("wb") as file:
            file.truncate(facts.blocks)
        with replacing(folder / FACTS) as new:
            new.write_text(json.dumps(asdict(facts), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"{error.filename or folder}: cannot be written: {error.strerror}"
        raise UsageError(message, hint="set block-data-path to a folder that can be written") from error
    return False


@frozen
class Vectors:
    """The vectors of all blocks, on disk."""

    path: Path
    facts: Facts

    def slices(self, most: int = SLICE) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(number of its first block, fp32 [up to `most`, size]) of each part, in order. Raises DataError."""
        try:
            with safe_open(self.path, framework="numpy") as file:
                whole = file.get_slice(KEY)
                for first in range(0, self.facts.blocks, most):
                    part: NDArray[np.float32] = whole[first : min(first + most, self.facts.blocks)]
                    if not np.isfinite(part).all():
                        raise DataError(f"{self.path}: a vector is not finite", hint=AGAIN)
                    yield first, part
        except (SafetensorError, OSError) as error:
            raise DataError(f"{self.path}: cannot be read: {error}", hint=AGAIN) from error


def read_vectors(folder: Path, facts: Facts) -> Vectors:
    """The finished vectors in a folder. Raises DataError where they are not of these facts, or damaged."""
    if not (folder / FACTS).exists():
        raise DataError(f"{folder}: no vectors of blocks here", hint="make them with `neox retrieval index`")
    found = _facts(folder)
    for name, what in (("model", "another model"), ("documents", "other documents, titles or lengths")):
        if getattr(found, name) != getattr(facts, name):
            raise DataError(f"{folder}: its vectors are of {what}", hint=f"{AGAIN}, or name the run that they are of")
    if found != facts:
        raise DataError(
            f"{folder / FACTS}: says {found.blocks} vectors of {found.size}, not {facts.blocks} of {facts.size}"
        )
    if (folder / PART).exists():
        raise DataError(f"{folder}: its index is not finished", hint="run `neox retrieval index` again")
    path = folder / FILE
    try:
        with safe_open(path, framework="numpy") as file:
            stored = file.get_slice(KEY)
            shape, dtype = list(stored.get_shape()), str(stored.get_dtype())
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read: {error}", hint=AGAIN) from error
    if (shape, dtype) != ([facts.blocks, facts.size], "F32"):
        raise DataError(f"{path}: holds {dtype} {shape}, not F32 {[facts.blocks, facts.size]}", hint=AGAIN)
    return Vectors(path, facts)


def _facts(folder: Path) -> Facts:
    path = folder / FACTS
    raw = read_object(path, DataError, most=1 << 16)
    return structured(strict_converter(), raw, Facts, f"{path}: does not say what its vectors are", DataError)


def _known(folder: Path) -> Facts | None:
    """The facts in the manifest of a folder; None if it has no readable one."""
    try:
        return _facts(folder)
    except DataError:
        return None


def _whole(folder: Path, facts: Facts) -> bool:
    """Whether the files of an index that is not finished have the lengths that they should have."""
    wanted = {PART: len(_header(facts)) + 4 * facts.size * facts.blocks, DONE: facts.blocks}
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in wanted.items())


def _header(facts: Facts) -> bytes:
    """The start of a safetensors file of one tensor."""
    shape = [facts.blocks, facts.size]
    text = json.dumps({KEY: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * facts.size * facts.blocks]}})
    data = text.encode() + b" " * (-len(text) % 8)
    return len(data).to_bytes(8, "little") + data


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
