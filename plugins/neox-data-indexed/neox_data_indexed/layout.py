"""The layout of the `MMIDIDX` format, version 1, all little-endian.

`.idx`: magic (9 bytes), version (u64), dtype code (u8), number of sequences (u64), number of document bounds (u64),
then the sizes in tokens (i32 each), the offsets in `.bin` in bytes (i64 each) and the document bounds (i64 each: the
first sequence of every document, and the end). `.bin`: the ids of all sequences, one after the other.
Source: megatron/data/indexed_dataset.py of GPT-NeoX.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from neox_core.errors import DataError
from neox_core.files import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
LEGACY_MAGIC = b"TNTIDX\x00\x00"

DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
FLOATS = {6: "float32", 7: "float64"}
CHECKED_AT_ONCE = 1 << 20
REMAKE = "write it again: neox data prepare ... --force"


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The integer type that GPT-NeoX stores a vocabulary in."""
    return DTYPES[8] if vocab_size < 65500 else DTYPES[4]


def code_of(dtype: np.dtype[Any]) -> int:
    """The number that stands for a dtype in the header."""
    return next(code for code, known in DTYPES.items() if known == dtype)


def dtype_of(code: int, path: Path) -> np.dtype[Any]:
    """Raises DataError naming the index at `path` for a code that is not of an integer type."""
    if code in FLOATS:
        raise DataError(f"{path}: holds {FLOATS[code]} numbers, not token ids", hint=REMAKE)
    if code not in DTYPES:
        raise DataError(f"{path}: has an unknown dtype code {code}; known are {sorted(DTYPES)}", hint=REMAKE)
    return DTYPES[code]


def bin_path(prefix: Path) -> Path:
    """The file of the tokens."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """The file of the documents' positions."""
    return prefix.with_name(f"{prefix.name}.idx")


@frozen
class Header:
    """The first bytes of an index. `sequences` and `bounds` are numbers of entries."""

    dtype: np.dtype[Any]
    sequences: int
    bounds: int

    @property
    def index_bytes(self) -> int:
        """Length that the whole index must have."""
        return HEADER.size + self.sequences * (4 + 8) + self.bounds * 8

    def pack(self) -> bytes:
        """The bytes of the header."""
        return HEADER.pack(MAGIC, VERSION, code_of(self.dtype), self.sequences, self.bounds)


def read_header(path: Path) -> Header:
    """Read the header of an index. Raises DataError that names the file if it is missing, truncated or in another
    format.
    """
    try:
        with open_file(path) as file:
            raw = file.read(HEADER.size)
            length = file.seek(0, 2)
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if raw.startswith(LEGACY_MAGIC):
        raise DataError(
            f"{path}: has the older `lazy`/`cached` format, which mmap does not read",
            hint="set data-impl to lazy, cached or infer",
        )
    if raw[: len(MAGIC)] != MAGIC[: len(raw)] or not raw:
        raise DataError(f"{path}: is not the index of an mmap dataset: it starts with {raw[:9]!r}", hint=REMAKE)
    if len(raw) < HEADER.size:
        raise DataError(f"{path}: ends within its header, after {len(raw)} of {HEADER.size} bytes", hint=REMAKE)
    _, version, code, sequences, bounds = HEADER.unpack(raw)
    if version != VERSION:
        raise DataError(f"{path}: has version {version}, known is version {VERSION}", hint=REMAKE)
    header = Header(dtype_of(code, path), sequences, bounds)
    if length != header.index_bytes:
        raise DataError(f"{path}: has {length} bytes, its header needs {header.index_bytes}", hint=REMAKE)
    return header


def check_bounds(index: Path, bounds: NDArray[np.int64], sequences: int) -> None:
    """Raises DataError for document bounds that do not start at 0, decrease, or exceed the sequences of the index."""
    last = 0
    for first in range(0, len(bounds), CHECKED_AT_ONCE):
        part = bounds[first : first + CHECKED_AT_ONCE]
        wrong = np.flatnonzero((part < np.concatenate([[last], part[:-1]])) | (part > sequences))
        if first == 0 and part[0] != 0:
            wrong = np.zeros(1, dtype=np.int64)
        if wrong.size:
            place = int(wrong[0])
            said = f"bound {first + place} of its documents is {int(part[place])}, and there are {sequences} sequences"
            raise DataError(f"{index}: {said}, in rising order from 0", hint=REMAKE)
        last = int(part[-1])


def require_inside(path: Path, sizes: NDArray[np.int32], document: int, offset: int, length: int | None) -> int:
    """The number of ids to read; length None: to the end. Raises IndexError outside of the document."""
    if not 0 <= document < len(sizes):
        raise IndexError(f"{path}: no document {document}, there are {len(sizes)}")
    size = int(sizes[document])
    length = size - offset if length is None else length
    if offset < 0 or length < 0 or offset + length > size:
        raise IndexError(f"{path}: document {document} has {size} tokens, not {offset} to {offset + length}")
    return length


def not_found(index: Path) -> DataError:
    """The error for a prefix without such an index."""
    prefix = index.with_suffix("")
    hint = "set data-path to the path without .bin and .idx; make both files with `neox data prepare`"
    if prefix.suffix in {".bin", ".idx"}:
        hint = f"remove {prefix.suffix}: data-path is the path without .bin and .idx"
    elif prefix.is_dir():
        inside = sorted(path.with_suffix("") for path in prefix.glob("*.idx"))
        hint = f"{prefix} is a folder; for a folder of text, set data-impl: text, or run `neox data prepare`"
        if inside:
            hint = f"{prefix} is a folder; in it there is {', '.join(map(str, inside[:3]))}"
    return DataError(f"{index}: no such file", hint=hint)


def read_magic(prefix: Path, length: int) -> bytes:
    """The first bytes of the index; empty when it cannot be read."""
    try:
        with open_file(idx_path(prefix)) as file:
            return file.read(length)
    except OSError:
        return b""


def read_through(path: Path) -> None:
    """Read the whole file, so that it is in the page cache."""
    buffer = bytearray(1 << 20)
    try:
        with open_file(path) as file:
            while file.readinto(buffer):
                continue
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
