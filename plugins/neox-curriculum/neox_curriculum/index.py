"""Indices of difficulty as DeepSpeed's DataAnalyzer writes them: rows of whole numbers in an indexed dataset."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")  # magic, version, number of the type, rows, documents
TYPES = dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"), start=1))


@frozen(eq=False)
class Rows:
    """values: of all rows, one after the other; ends: int64 [rows], where each row ends."""

    values: NDArray[Any]
    ends: NDArray[np.int64]


def read_rows(prefix: str) -> Rows:
    """The rows of `prefix`.idx and .bin, mapped. Raises DataError naming the file."""
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    try:
        with index.open("rb") as file:
            magic, version, number, count, _ = HEADER.unpack(file.read(HEADER.size).ljust(HEADER.size, b"\0"))
            if magic != MAGIC or version != 1 or number not in TYPES:
                raise DataError(f"{index}: not an index of DeepSpeed's DataAnalyzer")
            lengths: NDArray[np.int64] = np.fromfile(file, "<i4", count).astype(np.int64)
        values: NDArray[Any] = np.memmap(data, np.dtype(TYPES[number]).newbyteorder("<"), "r")
    except (OSError, ValueError) as error:
        raise DataError(f"{prefix}: cannot read the index: {error}") from error
    ends = np.cumsum(lengths)
    if len(lengths) != count or count == 0 or ends[-1] != len(values):
        raise DataError(f"{prefix}: index and data do not fit: {ends[-1] if len(ends) else 0} of {len(values)} numbers")
    return Rows(values, ends)


def write_rows(prefix: Path, values: NDArray[np.int64], ends: NDArray[np.integer[Any]]) -> None:
    """Rows that `read_rows` and DeepSpeed read; the index comes last. Raises DataError."""
    lengths = np.diff(ends, prepend=0)
    number = next(number for number, name in TYPES.items() if name == values.dtype.name)
    header = HEADER.pack(MAGIC, 1, number, len(ends), len(ends) + 1)
    starts = (ends - lengths) * values.dtype.itemsize
    documents = np.arange(len(ends) + 1)
    index = [
        header,
        *(each.tobytes() for each in (lengths.astype("<i4"), starts.astype("<i8"), documents.astype("<i8"))),
    ]
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for suffix, content in (
            (".bin", values.astype(values.dtype.newbyteorder("<")).tobytes()),
            (".idx", b"".join(index)),
        ):
            temporary = Path(f"{prefix}{suffix}.tmp")
            temporary.write_bytes(content)
            temporary.replace(f"{prefix}{suffix}")
    except OSError as error:
        raise DataError(f"{prefix}: cannot be written: {error.strerror}") from error
