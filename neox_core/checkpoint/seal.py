"""Files with their checksums, and the types of tensors in them; without torch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from attrs import field, frozen
from attrs import validators as v

from neox_core.errors import CheckpointError
from neox_core.files import sha256_of
from neox_core.plan.stored.saved import DAMAGED

TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""torch's name of each type that a file may hold."""
_CHUNK = 1 << 22


@frozen
class Seal:
    """Size in bytes and SHA-256 of a file when it was written."""

    size: int
    sha256: str = field(validator=v.matches_re(r"[0-9a-f]{64}"))


def write_bytes(path: Path, data: bytes) -> Seal:
    """Write and fsync a small file."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Seal(len(data), sha256_of(data))


def check_seal(path: Path, seal: Seal) -> None:
    """Raises CheckpointError when the file is missing or was changed."""
    try:
        size = path.stat().st_size
        if size != seal.size:
            raise CheckpointError(f"{path}: has {size} bytes, {seal.size} were written", hint=DAMAGED)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}", hint=DAMAGED) from error
    if digest.hexdigest() != seal.sha256:
        raise CheckpointError(f"{path}: wrong checksum, the file was changed after it was written", hint=DAMAGED)
