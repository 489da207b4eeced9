"""Reads what `torch.save` wrote: tensors stay on disk until they are used, and nothing in the file is run.

A file names the classes and functions that its objects are made with. The few that training programs write are replaced
by stand-ins, which only keep what they are given; a file with any other name is refused before it is read.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neox_core.errors import CheckpointError
from neox_core.untrusted import short, why

MOST_PICKLED = 1 << 26
"""Largest size in bytes of the part of a file that is not tensors."""
_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "Untyped")
_TORCH = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch.Size",
    "torch.device",
    "_codecs.encode",
    *(f"{module}.set" for module in ("__builtin__", "builtins")),
    *(f"torch.{dtype}" for dtype in ("float32", "float16", "half", "bfloat16", "float64")),
    *(f"torch.{name}Storage" for name in _STORAGES),
}
"""Names that torch replaces by what is safe."""
_FOREIGN = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.runtime.bf16_optimizer.fragment_address",
    "numpy.ndarray",
    "numpy.dtype",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
)


class StandIn:
    """An object of another program: what it was made of, and its attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {"state": state}

    def __new__(cls, *arguments: Any) -> Any:
        return super().__new__(cls)


_STAND_INS = [(type(name.rpartition(".")[2], (StandIn,), {}), name) for name in _FOREIGN]


def read_pickled(path: Path) -> Any:
    """The content of a file of `torch.save`, its tensors mapped from the file.

    Raises CheckpointError, which names the file, for one that is missing, damaged, or holds other names.
    """
    try:
        _refuse(path)
        with torch.serialization.safe_globals(_STAND_INS):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing", hint=_INCOMPLETE) from None
    except Exception as error:  # a file that was made to do harm may raise anything
        raise CheckpointError(f"{path}: is damaged, or not a file of torch.save: {short(why(error))}") from error


def names_in(pickled: bytes) -> set[str]:
    """The classes and functions that a pickle names. Raises ValueError for one that is damaged or of another form."""
    names = set()
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL":
            names.add(str(argument).replace(" ", "."))
        elif opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
            raise ValueError(f"a pickle with {opcode.name}, which torch.save does not write")
    return names


def require_tensor(found: Any, path: Path, what: str, shape: Iterable[int] | None = None) -> Tensor:
    """`found`, where it is a tensor of numbers that lie in the file one after the other. Raises CheckpointError.

    shape: None: any of one dimension
    """
    if not isinstance(found, Tensor) or not found.is_floating_point() or not found.is_contiguous():
        raise CheckpointError(f"{path}: {what} is not a tensor of floating-point numbers")
    needed = (found.storage_offset() + found.numel()) * found.element_size()
    if needed > found.untyped_storage().nbytes():
        raise CheckpointError(f"{path}: {what} has fewer numbers than its shape")
    if tuple(found.shape) != (tuple(shape) if shape is not None else (found.numel(),)):
        wanted = list(shape) if shape is not None else "one dimension"
        raise CheckpointError(f"{path}: {what} is {list(found.shape)}, not {wanted}")
    return found.detach()


def _refuse(path: Path) -> None:
    """Raises CheckpointError for a file with unexpected names, or one that would grow when it is read."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(each.compress_type != zipfile.ZIP_STORED for each in members):
            raise CheckpointError(f"{path}: holds compressed parts, which torch.save does not write")
        pickles = [each for each in members if each.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or sum(each.file_size for each in members) > path.stat().st_size:
            raise CheckpointError(f"{path}: is damaged, or not a file of torch.save")
        if pickles[0].file_size > MOST_PICKLED:
            raise CheckpointError(f"{path}: {pickles[0].file_size} bytes that are not tensors are more than are read")
        strange = sorted(names_in(archive.read(pickles[0])) - _TORCH - set(_FOREIGN))
    if strange:
        raise CheckpointError(
            f"{path}: names {short(strange[0])}, which no training checkpoint needs; nothing in it was run",
            hint="do not load this file in other programs before you know where it comes from",
        )


_INCOMPLETE = "copy the checkpoint's folder again, whole"
