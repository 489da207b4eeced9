"""The older `TNTIDX` format, version 1, that `lazy` and `cached` read, all little-endian.

`.idx`: magic (8 bytes), then as u64: version, dtype code, bytes of an id, number of sequences, number of sizes, number
of document bounds; then as i64: the dimensions of all sequences so far (one each, so 0, 1, ...), the offsets in `.bin`
in ids (with the end), the sizes, and the document bounds. `.bin`: the ids of all sequences, one after the other.
Source: megatron/data/indexed_dataset.py of GPT-NeoX.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from neox_core.errors import DataError
from neox_core.files import open_file
from neox_data_indexed.layout import (
    DTYPES,
    LEGACY_MAGIC,
    MAGIC,
    REMAKE,
    bin_path,
    check_bounds,
    code_of,
    dtype_of,
    idx_path,
    not_found,
    read_magic,
    read_through,
    require_inside,
)
from neox_data_indexed.writer import LARGEST_SIZE, IndexedWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from neox_data_indexed.settings import IndexedSettings

VERSION = 1
HEADER = struct.Struct("<8s6Q")
WRITTEN = DTYPES[4]  # GPT-NeoX writes this format as int32, whatever the vocabulary


class LegacySource(ABC):
    """One dataset. Its index is in memory; subclasses decide where the ids are.

    sizes: int32 [documents], tokens of each. bounds: as of an mmap dataset.
    """

    def __init__(self, prefix: Path, *, warm_up: bool) -> None:
        self.path = bin_path(prefix)
        index = idx_path(prefix)
        self.dtype, starts, sizes, self.bounds = _read_index(index)
        self.sizes: NDArray[np.int32] = sizes.astype(np.int32)
        self.starts: NDArray[np.int64] = starts
        self._check_length(index)
        if warm_up:
            read_through(self.path)

    @abstractmethod
    def take(self, first: int, count: int) -> NDArray[Any]:
        """`count` ids of the whole `.bin` from `first` on."""

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Ids [length] of one document. Raises IndexError outside of the document."""
        length = require_inside(self.path, self.sizes, document, offset, length)
        return self.take(int(self.starts[document]) + offset, length)

    def _check_length(self, index: Path) -> None:
        try:
            length = self.path.stat().st_size
        except FileNotFoundError:
            raise DataError(f"{self.path}: no such file, though {index} is there", hint=REMAKE) from None
        needed = int(self.starts[-1]) * self.dtype.itemsize
        if length != needed:
            raise DataError(f"{self.path}: has {length} bytes, {index.name} needs {needed}", hint=REMAKE)


class LazySource(LegacySource):
    """Reads ids from the file when they are needed."""

    def __init__(self, prefix: Path, *, warm_up: bool = False) -> None:
        super().__init__(prefix, warm_up=warm_up)
        self._file = open_file(self.path)

    def take(self, first: int, count: int) -> NDArray[Any]:
        wanted, start = count * self.dtype.itemsize, first * self.dtype.itemsize
        raw = os.pread(self._file.fileno(), wanted, start)  # pread has no position, so processes can share the file
        while len(raw) < wanted:
            more = os.pread(self._file.fileno(), wanted - len(raw), start + len(raw))
            if not more:
                raise DataError(f"{self.path}: ends within the tokens that its index asks for", hint=REMAKE)
            raw += more
        return np.frombuffer(raw, dtype=self.dtype)


class CachedSource(LegacySource):
    """Holds all ids in memory; forked processes share them."""

    def __init__(self, prefix: Path, *, warm_up: bool = False) -> None:
        super().__init__(prefix, warm_up=False)  # this kind always reads the whole file
        self._tokens: NDArray[Any] = np.fromfile(self.path, dtype=self.dtype)
        self._tokens.flags.writeable = False

    def take(self, first: int, count: int) -> NDArray[Any]:
        return self._tokens[first : first + count]


class LegacyWriter(IndexedWriter):
    """Writes version 1 of the `TNTIDX` format."""

    def write_index(self, index: IO[bytes]) -> None:
        counts = (self.sequences, self.sequences, self.documents + 1)
        index.write(HEADER.pack(LEGACY_MAGIC, VERSION, code_of(self.dtype), self.dtype.itemsize, *counts))
        dimensions = end = 0
        index.write(bytes(8))
        for sizes in self.size_chunks():
            index.write(np.arange(dimensions + 1, dimensions + len(sizes) + 1, dtype="<i8").tobytes())
            dimensions += len(sizes)
        index.write(bytes(8))
        for sizes in self.size_chunks():
            ends = end + np.cumsum(sizes)
            index.write(ends.astype("<i8").tobytes())
            end = int(ends[-1])
        for sizes in self.size_chunks():
            index.write(sizes.astype("<i8").tobytes())
        self.write_bounds(index)


class LegacyBackend:
    """`lazy` and `cached` datasets."""

    takes_sentences = True

    source: type[LazySource | CachedSource] = LazySource

    def __init__(self, settings: IndexedSettings) -> None:
        self._warm_up = settings.mmap_warmup

    def recognises(self, prefix: Path) -> bool:
        return bin_path(prefix).is_file() and read_magic(prefix, len(LEGACY_MAGIC)) == LEGACY_MAGIC

    def files(self, prefix: Path) -> tuple[Path, ...]:
        return bin_path(prefix), idx_path(prefix)

    def open(self, prefix: Path) -> LegacySource:
        try:
            return self.source(prefix, warm_up=self._warm_up)
        except OSError as error:
            raise DataError(f"{bin_path(prefix)}: cannot be read: {error.strerror or error}") from error

    def create(self, prefix: Path, vocab_size: int) -> LegacyWriter:
        return LegacyWriter(prefix, vocab_size, WRITTEN)

    def resume(self, prefix: Path, vocab_size: int, position: Mapping[str, int]) -> LegacyWriter:
        return LegacyWriter(prefix, vocab_size, WRITTEN, position)


class CachedBackend(LegacyBackend):
    """`cached`: the files of `lazy`, held in memory."""

    source = CachedSource


def _read_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(dtype, starts [sequences + 1], sizes, bounds). Raises DataError naming the file."""
    try:
        with open_file(path) as file:
            raw = file.read(HEADER.size)
            dtype, sequences, sizes, bounds = _read_header(path, raw, file.seek(0, os.SEEK_END))
            file.seek(HEADER.size)
            numbers: NDArray[np.int64] = np.fromfile(file, dtype="<i8")
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    cuts = np.cumsum([sequences + 1, sequences + 1, sizes])
    dimensions, starts, lengths, document_bounds = np.split(numbers, cuts)
    if not np.array_equal(dimensions, np.arange(sequences + 1)):
        raise DataError(f"{path}: its sequences do not have one dimension", hint=REMAKE)
    wrong = np.flatnonzero((np.diff(starts) != lengths) | (lengths < 0) | (lengths > LARGEST_SIZE))
    if wrong.size or starts[0] != 0:
        document = int(wrong[0]) if wrong.size else 0
        raise DataError(f"{path}: document {document} does not start where the last one ends", hint=REMAKE)
    if len(document_bounds) != bounds:
        raise DataError(f"{path}: holds {len(document_bounds)} document bounds of {bounds}", hint=REMAKE)
    check_bounds(path, document_bounds, sequences)
    return dtype, starts, lengths, document_bounds


def _read_header(path: Path, raw: bytes, length: int) -> tuple[np.dtype[Any], int, int, int]:
    """(dtype, sequences, sizes, bounds) of an index of `length` bytes that starts with `raw`."""
    if raw.startswith(MAGIC):
        raise DataError(f"{path}: has the mmap format", hint="set data-impl to mmap or infer")
    if raw[: len(LEGACY_MAGIC)] != LEGACY_MAGIC[: len(raw)] or not raw:
        raise DataError(f"{path}: is not the index of a lazy dataset: it starts with {raw[:8]!r}", hint=REMAKE)
    if len(raw) < HEADER.size:
        raise DataError(f"{path}: ends within its header, after {len(raw)} of {HEADER.size} bytes", hint=REMAKE)
    _, version, code, width, sequences, sizes, bounds = HEADER.unpack(raw)
    if version != VERSION:
        raise DataError(f"{path}: has version {version}, known is version {VERSION}", hint=REMAKE)
    dtype = dtype_of(code, path)
    if width != dtype.itemsize or sizes != sequences:
        raise DataError(f"{path}: its header contradicts itself", hint=REMAKE)
    needed = HEADER.size + 8 * (2 * (sequences + 1) + sizes + bounds)
    if length != needed:
        raise DataError(f"{path}: has {length} bytes, its header needs {needed}", hint=REMAKE)
    return dtype, sequences, sizes, bounds
