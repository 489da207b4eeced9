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
from safetensors import SafetensorError, safe_open
from torch import Tensor

from neox_core.checkpoint.seal import TYPES, Seal
from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import DAMAGED

DTYPES = {getattr(torch, name): code for code, name in TYPES.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, str] | None = None) -> Seal:
    """Write and fsync `tensors` by key. note: text for the header.

    Raises OSError, for example for a full disk, and CheckpointError for a dtype that the format does not have.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for data in _parts(*layout(tensors, note)):
            digest.update(data)
            size += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Seal(size, digest.hexdigest())


def layout(tensors: Mapping[str, Tensor], note: Mapping[str, str] | None = None) -> tuple[bytes, list[Tensor]]:
    """A file of `tensors`: its first bytes, and the tensors that follow them in this order without gaps."""
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
    return len(text).to_bytes(8, "little") + text, [tensors[key].detach() for key in order]


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


def _parts(text: bytes, tensors: list[Tensor]) -> Iterator[bytes | memoryview]:
    yield text
    for tensor in tensors:
        flat = tensor.to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield memoryview(flat.view(torch.uint8).numpy())
