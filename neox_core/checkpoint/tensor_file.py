"""One file of tensors in the safetensors format, written tensor by tensor, with its checksum.

The library's own writer needs all tensors in memory at once and computes no checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor

from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import DAMAGED

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_CHUNK = 1 << 22


@frozen
class Seal:
    """Size in bytes and SHA-256 of a file when it was written."""

    size: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, str] | None = None) -> Seal:
    """Write and fsync `tensors` by key. note: text for the header.

    Raises OSError, for example for a full disk, and CheckpointError for a dtype that the format does not have.
    """
    # Readers view the data in place, so a tensor must start at a multiple of its element's size.
    order = sorted(tensors, key=lambda key: -tensors[key].element_size())
    header: dict[str, object] = {} if note is None else {"__metadata__": dict(note)}
    end = 0
    for key in order:
        tensor = tensors[key]
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{key} is of {tensor.dtype}, which a checkpoint cannot hold")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[key] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for data in _parts(text, (tensors[key] for key in order)):
            digest.update(data)
            size += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Seal(size, digest.hexdigest())


def write_bytes(path: Path, data: bytes) -> Seal:
    """Write and fsync a small file."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Seal(len(data), hashlib.sha256(data).hexdigest())


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


def read_part(path: Path, key: str, shape: tuple[int, ...], dtype: str, part: tuple[int, int] | None = None) -> Tensor:
    """One tensor, or the elements [first, last) of one that is stored flat; on the CPU.

    Raises CheckpointError when the file does not have the tensor, or has it in another shape or dtype.
    """
    try:
        with safe_open(path, framework="pt") as file:
            stored = file.get_slice(key)
            found = tuple(stored.get_shape()), str(stored.get_dtype())
            if found != (shape, dtype):
                raise CheckpointError(f"{path}: {key} is {found[1]} {list(found[0])}, not {dtype} {list(shape)}")
            if part is None or part == (0, shape[0]):
                tensor: Tensor = file.get_tensor(key)
            else:
                tensor = stored[part[0] : part[1]]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot read {key}: {error}", hint=DAMAGED) from error
    return tensor


def _parts(text: bytes, tensors: Iterator[Tensor]) -> Iterator[bytes | memoryview]:
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield memoryview(flat.view(torch.uint8).numpy())
