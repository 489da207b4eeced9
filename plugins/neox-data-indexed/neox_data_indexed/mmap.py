"""Reading through a memory map: tokens stay in the page cache, shared by all processes of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from neox_core.errors import DataError
from neox_data_indexed.layout import (
    CHECKED_AT_ONCE,
    HEADER,
    MAGIC,
    REMAKE,
    Header,
    bin_path,
    check_bounds,
    dtype_for,
    idx_path,
    read_header,
    read_magic,
    read_through,
    require_inside,
)
from neox_data_indexed.writer import IndexedWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from neox_data_indexed.settings import IndexedSettings


class MmapSource:
    """One dataset. A document is a sequence of the index, the unit that GPT-NeoX splits and shuffles.

    sizes: int32 [documents], tokens of each.
    bounds: int64 [groups + 1]: the first document of each group of sentences, and the end. Where every document was
        written whole, as for language models, this is 0, 1, ..., documents.
    """

    def __init__(self, prefix: Path, *, warm_up: bool = False) -> None:
        self._bin, index = bin_path(prefix), idx_path(prefix)
        header = read_header(index)
        if warm_up:
            read_through(index)
        self.dtype = header.dtype
        table: NDArray[np.uint8] = np.memmap(index, dtype=np.uint8, mode="r").view(np.ndarray)
        sizes_end = HEADER.size + header.sequences * 4
        starts_end = sizes_end + header.sequences * 8
        self.sizes: NDArray[np.int32] = table[HEADER.size : sizes_end].view("<i4")
        self._starts: NDArray[np.int64] = table[sizes_end:starts_end].view("<i8")
        self.bounds: NDArray[np.int64] = table[starts_end:].view("<i8")
        self._check_index(index)
        self._tokens = self._map_tokens(index)
        if warm_up:
            read_through(self._bin)

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Ids [length] of one document, a read-only view. Raises IndexError outside of the document."""
        length = require_inside(self._bin, self.sizes, document, offset, length)
        start = int(self._starts[document]) // self.dtype.itemsize + offset
        return self._tokens[start : start + length]

    def _check_index(self, index: Path) -> None:
        expected = 0
        for first in range(0, len(self.sizes), CHECKED_AT_ONCE):
            sizes = self.sizes[first : first + CHECKED_AT_ONCE].astype(np.int64)
            ends = expected + np.cumsum(sizes * self.dtype.itemsize)
            starts = self._starts[first : first + CHECKED_AT_ONCE]
            wrong = np.flatnonzero((sizes < 0) | (starts != ends - sizes * self.dtype.itemsize))
            if wrong.size:
                document = first + int(wrong[0])
                raise DataError(f"{index}: document {document} does not start where the last one ends", hint=REMAKE)
            expected = int(ends[-1])
        self._bytes = expected
        check_bounds(index, self.bounds, len(self.sizes))

    def _map_tokens(self, index: Path) -> NDArray[Any]:
        try:
            length = self._bin.stat().st_size
        except FileNotFoundError:
            raise DataError(f"{self._bin}: no such file, though {index} is there", hint=REMAKE) from None
        if length != self._bytes:
            raise DataError(f"{self._bin}: has {length} bytes, {index.name} needs {self._bytes}", hint=REMAKE)
        if not length:  # an empty file cannot be mapped
            return np.empty(0, self.dtype)
        tokens: NDArray[Any] = np.memmap(self._bin, dtype=self.dtype, mode="r").view(np.ndarray)
        return tokens


class MmapWriter(IndexedWriter):
    """Writes version 1 of the `MMIDIDX` format."""

    def write_index(self, index: IO[bytes]) -> None:
        index.write(Header(self.dtype, self.sequences, self.documents + 1).pack())
        for sizes in self.size_chunks():
            index.write(sizes.astype("<i4").tobytes())
        start = 0
        for sizes in self.size_chunks():
            ends = start + np.cumsum(sizes * self.dtype.itemsize)
            index.write((ends - sizes * self.dtype.itemsize).astype("<i8").tobytes())
            start = int(ends[-1])
        self.write_bounds(index)


class MmapBackend:
    """Memory-mapped `.bin/.idx` datasets."""

    takes_sentences = True

    def __init__(self, settings: IndexedSettings) -> None:
        self._warm_up = settings.mmap_warmup

    def recognises(self, prefix: Path) -> bool:
        return bin_path(prefix).is_file() and read_magic(prefix, len(MAGIC)) == MAGIC

    def files(self, prefix: Path) -> tuple[Path, ...]:
        return bin_path(prefix), idx_path(prefix)

    def open(self, prefix: Path) -> MmapSource:
        try:
            return MmapSource(prefix, warm_up=self._warm_up)
        except OSError as error:
            raise DataError(f"{bin_path(prefix)}: cannot be read: {error.strerror or error}") from error

    def create(self, prefix: Path, vocab_size: int) -> MmapWriter:
        return MmapWriter(prefix, vocab_size, dtype_for(vocab_size))

    def resume(self, prefix: Path, vocab_size: int, position: Mapping[str, int]) -> MmapWriter:
        return MmapWriter(prefix, vocab_size, dtype_for(vocab_size), position)
