"""Records of text files: lines of .jsonl, rows of .parquet, a whole .txt; .gz and .zst are unpacked on the way."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from neox_core.errors import DataError
from neox_core.files import open_file

KINDS = (".jsonl", ".txt", ".parquet")
PACKED = (".gz", ".zst")
CHUNK_BYTES = 1 << 20
ROWS_AT_ONCE = 256
DAMAGED = "it is damaged or not what its name says: get it again, or leave it out"

Record = bytes | tuple[Any, ...]
"""Bytes of a line or file, or the values of a row under the wanted keys."""


def kind_of(path: Path) -> str | None:
    """.jsonl, .txt or .parquet; None for what is not read."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in PACKED:
        return suffixes[-2] if len(suffixes) > 1 and suffixes[-2] in KINDS[:2] else None
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else None


def read_records(path: Path, keys: Sequence[str]) -> Iterator[tuple[Record, int]]:
    """(record, bytes that reading it moved on in the file), in constant memory but for the longest record.

    Raises DataError for what is cut short or cannot be unpacked, and OSError.
    """
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _rows(path, keys)
    elif kind == ".jsonl":
        yield from _lines(path)
    else:
        chunks = list(_chunks(path))
        yield b"".join(chunk for chunk, _ in chunks), sum(read for _, read in chunks)


def texts_of(record: Record, keys: Sequence[str], where: str, *, is_line: bool) -> tuple[str, ...]:
    """The text of a record under each of `keys`; "" for an empty line. Raises DataError for what holds none."""
    if isinstance(record, tuple):
        for key, value in zip(keys, record, strict=True):
            if not isinstance(value, str | None):
                raise DataError(f"{where}: holds no text under {key!r} but {type(value).__name__}")
        return tuple(value or "" for value in record)
    if not is_line:
        return (_decoded(record, where, ""),)
    if not record.strip():
        return ("",) * len(keys)
    text = _decoded(record, where, " of the line")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "each line of a .jsonl file is one JSON object; `neox data prepare --skip-bad` leaves broken ones out"
        why = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{where}: is not JSON: {why}", hint=hint) from error
    texts = tuple(_member(parsed, key, where) for key in keys)
    if "\\ud" in text or "\\uD" in text:  # without an escape there are only whole characters in UTF-8
        for key, each in zip(keys, texts, strict=True):
            _require_whole(each, key, where)
    return texts


def _require_whole(text: str, key: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        hint = "write the whole character; `neox data prepare --skip-bad` leaves such lines out"
        raise DataError(
            f"{where}: the text under {key!r} holds half a character at {error.start} (a lone surrogate)", hint=hint
        ) from error


def _member(parsed: Any, key: str, where: str) -> str:
    text = parsed.get(key) if isinstance(parsed, dict) else None
    if isinstance(text, str):
        return text
    if text is not None:
        what = {bool: "true or false", list: "a list", dict: "an object"}.get(type(text), "a number")
        hint = "a text is a string; `neox data prepare --skip-bad` leaves such lines out"
        raise DataError(f"{where}: holds no text under {key!r} but {what}", hint=hint)
    has = f"it has {', '.join(sorted(parsed)) or 'no members'}" if isinstance(parsed, dict) else "it is not an object"
    raise DataError(
        f"{where}: holds no text under {key!r}; {has}", hint="name the member by --json-keys, in a config by text-key"
    )


def _decoded(raw: bytes, where: str, of_what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "convert it, for instance with iconv -t utf-8"
        raise DataError(f"{where}: is not UTF-8 at byte {error.start}{of_what}", hint=hint) from error


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    if path.suffix not in PACKED:
        with open_file(path) as file:
            yield from ((line, len(line)) for line in file)
        return
    begun, read = b"", 0
    for chunk, more in _chunks(path):
        *lines, begun = (begun + chunk).split(b"\n")
        read += more
        for line in lines:
            yield line, read
            read = 0
    if begun or read:
        yield begun, read


def _chunks(path: Path) -> Iterator[tuple[bytes, int]]:
    """(unpacked bytes, bytes of the file that they took)."""
    with open_file(path) as file:
        unpack = None
        while raw := file.read(CHUNK_BYTES):
            if path.suffix not in PACKED:
                yield raw, len(raw)
                continue
            read, parts = len(raw), []
            while raw:
                if unpack is None or unpack.eof:  # files can hold several streams, one after the other
                    unpack = _unpacker(path)
                try:
                    parts.append(unpack.decompress(raw))
                except _errors(path) as error:
                    raise DataError(f"{path}: cannot be unpacked: {error}", hint=DAMAGED) from error
                raw = unpack.unused_data if unpack.eof else b""
            yield b"".join(parts), read
        if unpack is not None and not unpack.eof:
            raise DataError(f"{path}: is cut short: it ends within its compressed data", hint=DAMAGED)


def _unpacker(path: Path) -> Any:
    if path.suffix == ".gz":
        return zlib.decompressobj(wbits=31)
    return _zstandard(path).ZstdDecompressor().decompressobj()


def _errors(path: Path) -> type[Exception]:
    return zlib.error if path.suffix == ".gz" else _zstandard(path).ZstdError


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise DataError(f"{path}: reading .zst needs zstandard", hint="pip install zstandard") from error
    return zstandard


def _rows(path: Path, keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], int]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading .parquet needs pyarrow", hint="pip install pyarrow") from error
    open_file(path).close()  # a pipe would be waited for
    try:
        with parquet.ParquetFile(path) as file:
            missing = [key for key in keys if key not in file.schema_arrow.names]
            if missing:
                known = ", ".join(sorted(file.schema_arrow.names))
                raise DataError(
                    f"{path}: has no column {missing[0]!r}; it has {known}",
                    hint="name it by --json-keys, in a config by text-key",
                )
            share = path.stat().st_size / max(1, file.metadata.num_rows)
            done = 0
            # without threads, which would not come along to the processes that read ahead of a run
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(keys), use_threads=False):
                columns = [batch.column(key).to_pylist() for key in keys]
                for row in zip(*columns, strict=True):
                    done += 1
                    yield row, int(done * share) - int((done - 1) * share)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", hint=DAMAGED) from error
