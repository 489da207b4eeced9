"""Writes a dataset in constant memory; it appears under its name complete, or not at all."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from neox_core.errors import DataError
from neox_core.files import lock
from neox_data_indexed.layout import bin_path, idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

COPIED_AT_ONCE = 1 << 20
LARGEST_SIZE = 2**31 - 1


class IndexedWriter(ABC):
    """Writes `.bin` and the sizes of documents as they come; the index is made of the sizes at the end.

    position: of a `checkpoint` to continue from, which needs the partial files; None: start a dataset.
    """

    def __init__(
        self, prefix: Path, vocab_size: int, dtype: np.dtype[Any], position: Mapping[str, int] | None = None
    ) -> None:
        self.dtype = dtype
        self.documents = 0 if position is None else position["documents"]
        self.sequences = self.documents if position is None else position.get("sequences", self.documents)
        self._prefix, self._vocab_size = prefix, vocab_size
        self._bounds: IO[bytes] | None = None  # made when a document has another number of sequences than one
        self._index: IO[bytes] | None = None
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
            self._bin = _open_partial(bin_path(prefix), 0 if position is None else position["bytes"])
            self._sizes = _open_partial(prefix.with_name(f"{prefix.name}.sizes"), 4 * self.sequences)
            if position is not None and "sequences" in position:
                self._bounds = self._open_bounds(8 * (self.documents + 1))
        except OSError as error:
            raise self._cannot_write(error) from error

    @abstractmethod
    def write_index(self, index: IO[bytes]) -> None:
        """The whole of `.idx`, from `sequences`, `documents`, `dtype`, `size_chunks()` and `write_bounds()`."""

    def add_document(self, tokens: Sequence[int] | NDArray[Any], sentences: Sequence[int] | None = None) -> None:
        """Add one document, or its sentences as sequences of their own: `sentences` are their lengths in tokens.

        Raises DataError for an id that is not in the vocabulary.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        lengths = [len(ids)] if sentences is None else list(sentences)
        if sum(lengths) != len(ids) or min(lengths, default=0) < 0 or max(lengths, default=0) > LARGEST_SIZE:
            raise DataError(f"{self._prefix}: document {self.documents}: {len(ids)} ids in sequences of {lengths}")
        if len(ids) and (ids.min() < 0 or ids.max() >= self._vocab_size):
            wrong = int(ids[(ids < 0) | (ids >= self._vocab_size)][0])
            raise DataError(
                f"{self._prefix}: document {self.documents}: id {wrong} is not in a vocabulary of {self._vocab_size}",
                hint="use the tokenizer of this vocabulary",
            )
        try:
            if len(lengths) != 1 and self._bounds is None:
                self._bounds = self._bounds_so_far()
            self._bin.write(ids.astype(self.dtype).tobytes())
            self._sizes.write(np.asarray(lengths, dtype="<i4").tobytes())
            if self._bounds is not None:
                self._bounds.write((self.sequences + len(lengths)).to_bytes(8, "little"))
        except OSError as error:
            raise self._cannot_write(error) from error
        self.sequences += len(lengths)
        self.documents += 1

    def checkpoint(self) -> dict[str, int]:
        """Flush everything written so far to disk. Returns its end, for a writer that continues from there."""
        apart = {} if self._bounds is None else {"sequences": self.sequences}
        try:
            for file in filter(None, (self._bin, self._sizes, self._bounds)):
                _sync(file)
            return {"documents": self.documents, "bytes": self._bin.tell(), **apart}
        except OSError as error:
            raise self._cannot_write(error) from error

    def close(self) -> None:
        """Flush both files, then move them into place: `.idx` is the last, and without it there is no dataset.

        If this fails, the tokens stay in the partial file until `abort`.
        """
        final_bin, final_idx = bin_path(self._prefix), idx_path(self._prefix)
        try:
            self._index = _open_partial(final_idx, 0)
            self.write_index(self._index)
            for file in (self._bin, self._index):
                _sync(file)
            final_idx.unlink(missing_ok=True)  # else a kill could leave an old index with new tokens
            Path(self._bin.name).replace(final_bin)
            Path(self._index.name).replace(final_idx)
            for left in (self._sizes, self._bounds):
                if left is not None:
                    Path(left.name).unlink()
            _sync_folder(final_idx.parent)
        except OSError as error:
            if self._index is not None:
                Path(self._index.name).unlink(missing_ok=True)
            raise self._cannot_write(error) from error
        self._close_files()

    def abort(self) -> None:
        """Remove what was written."""
        for file in (self._bin, self._sizes, self._bounds, self._index):
            if file is not None and not file.closed:
                Path(file.name).unlink(missing_ok=True)
        self._close_files()

    def leave(self) -> None:
        """Close the partial files, so that another writer can continue from the last checkpoint."""
        self._close_files()

    def size_chunks(self) -> Iterator[NDArray[np.int64]]:
        """The sizes in tokens of all sequences, in parts."""
        self._sizes.seek(0)
        while raw := self._sizes.read(4 * COPIED_AT_ONCE):
            yield np.frombuffer(raw, dtype="<i4").astype(np.int64)

    def write_bounds(self, index: IO[bytes]) -> None:
        """The first sequence of every document, and the end."""
        if self._bounds is None:
            for first in range(0, self.documents + 1, COPIED_AT_ONCE):
                index.write(np.arange(first, min(first + COPIED_AT_ONCE, self.documents + 1), dtype="<i8").tobytes())
        else:
            self._bounds.seek(0)
            shutil.copyfileobj(self._bounds, index, COPIED_AT_ONCE)

    def _bounds_so_far(self) -> IO[bytes]:
        bounds = self._open_bounds(0)
        self.write_bounds(bounds)
        return bounds

    def _open_bounds(self, kept: int) -> IO[bytes]:
        return _open_partial(self._prefix.with_name(f"{self._prefix.name}.bounds"), kept)

    def _close_files(self) -> None:
        for file in (self._bin, self._index, self._sizes, self._bounds):
            if file is not None:
                with suppress(OSError):  # a full disk, when the rest of the buffer is written
                    file.close()

    def _cannot_write(self, error: OSError) -> DataError:
        return DataError(f"{self._prefix}: cannot be written: {error.strerror or error}")


def _open_partial(final: Path, kept: int) -> IO[bytes]:
    """The file that becomes `final`, truncated to the `kept` bytes of an earlier run. Refuses a second writer."""
    path = final.with_name(f".{final.name}.partial")
    file = path.open("a+b")
    try:
        ours = lock(file.fileno()) and os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        ours = False
    if not ours:
        file.close()
        raise DataError(f"{final}: another process is writing it", hint="wait for it, or write to another folder")
    if file.seek(0, os.SEEK_END) < kept:
        file.close()
        raise DataError(f"{path}: ends before byte {kept}, where it was left", hint="start over without --resume")
    file.truncate(kept)
    file.seek(kept)
    return file


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
