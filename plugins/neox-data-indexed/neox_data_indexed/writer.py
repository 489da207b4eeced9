"""Writing a dataset in constant memory; it appears under its name whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from neox_core.errors import DataError
from neox_data_indexed.layout import Header, bin_path, idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

COPIED_AT_ONCE = 1 << 20
LARGEST_SIZE = 2**31 - 1


class MmapWriter:
    """Writes `.bin` as documents come; their sizes wait in an unnamed file, which the system drops with the process."""

    def __init__(self, prefix: Path, vocab_size: int, dtype: np.dtype[Any]) -> None:
        self._prefix, self._vocab_size, self._dtype = prefix, vocab_size, dtype
        self._sequences, self._documents = 0, 0
        self._index: IO[bytes] | None = None
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
            self._bin = _open_partial(bin_path(prefix))
            self._sizes: IO[bytes] = tempfile.TemporaryFile(dir=prefix.parent)  # noqa: SIM115
            self._bounds: IO[bytes] = tempfile.TemporaryFile(dir=prefix.parent)  # noqa: SIM115
        except OSError as error:
            raise self._cannot_write(error) from error
        self._bounds.write(_i64(0))

    def add_document(self, tokens: Sequence[int] | NDArray[Any], sentences: Sequence[int] | None = None) -> None:
        """Add one document, or its sentences as sequences of their own: `sentences` are their lengths in tokens.

        Raises DataError for an id that is not in the vocabulary.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        lengths = [len(ids)] if sentences is None else list(sentences)
        if sum(lengths) != len(ids) or min(lengths, default=0) < 0 or max(lengths, default=0) > LARGEST_SIZE:
            raise DataError(f"{self._prefix}: document {self._documents}: {len(ids)} ids in sequences of {lengths}")
        if len(ids) and (ids.min() < 0 or ids.max() >= self._vocab_size):
            wrong = int(ids[(ids < 0) | (ids >= self._vocab_size)][0])
            raise DataError(
                f"{self._prefix}: document {self._documents}: id {wrong} is not in a vocabulary of {self._vocab_size}",
                hint="the tokenizer and the dataset must agree on the vocabulary",
            )
        try:
            self._bin.write(ids.astype(self._dtype).tobytes())
            self._sizes.write(np.asarray(lengths, dtype="<i4").tobytes())
            self._bounds.write(_i64(self._sequences + len(lengths)))
        except OSError as error:
            raise self._cannot_write(error) from error
        self._sequences += len(lengths)
        self._documents += 1

    def close(self) -> None:
        """Put both files on disk, then in place: `.idx` is the last, and without it there is no dataset."""
        final_bin, final_idx = bin_path(self._prefix), idx_path(self._prefix)
        try:
            self._index = _open_partial(final_idx)
            self._write_index(self._index)
            for file in (self._bin, self._index):
                file.flush()
                os.fsync(file.fileno())
            final_idx.unlink(missing_ok=True)  # else a kill could leave an old index beside new tokens
            Path(self._bin.name).replace(final_bin)
            Path(self._index.name).replace(final_idx)
            _sync_folder(final_idx.parent)
        except OSError as error:
            self.abort()
            raise self._cannot_write(error) from error
        self._close_files()

    def abort(self) -> None:
        for file in (self._bin, self._index):
            if file is not None and not file.closed:
                Path(file.name).unlink(missing_ok=True)
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._bin, self._index, self._sizes, self._bounds):
            if file is not None:
                file.close()

    def _cannot_write(self, error: OSError) -> DataError:
        return DataError(f"{self._prefix}: cannot be written: {error.strerror or error}")

    def _write_index(self, index: IO[bytes]) -> None:
        index.write(Header(self._dtype, self._sequences, self._documents + 1).pack())
        self._sizes.seek(0)
        shutil.copyfileobj(self._sizes, index, COPIED_AT_ONCE)
        self._sizes.seek(0)
        start = 0
        while raw := self._sizes.read(4 * COPIED_AT_ONCE):
            lengths = np.frombuffer(raw, dtype="<i4").astype(np.int64) * self._dtype.itemsize
            ends = start + np.cumsum(lengths)
            index.write((ends - lengths).astype("<i8").tobytes())
            start = int(ends[-1])
        self._bounds.seek(0)
        shutil.copyfileobj(self._bounds, index, COPIED_AT_ONCE)


def _open_partial(final: Path) -> IO[bytes]:
    """The file that becomes `final`. What a killed run left there is overwritten; a second writer is refused."""
    path = final.with_name(f".{final.name}.partial")
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        ours = False
    if not ours:
        file.close()
        raise DataError(f"{final}: another process is writing it", hint="wait for it, or write to another folder")
    file.truncate(0)
    return file


def _i64(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
