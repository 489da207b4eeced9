"""The files of a published checkpoint: config.json, and tensors in one or several safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from neox_core.checkpoint.tensor_file import write_tensors
from neox_core.errors import CheckpointError
from neox_core.untrusted import read_object

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
NOTE = {"format": "pt"}  # transformers asks for it


class Published:
    """Tensors of a folder by name, read one at a time. Raises CheckpointError where it is not what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = self._files()

    def tensor(self, name: str) -> Tensor:
        path = self.folder / self.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot read {name}: {error}") from error
        return tensor

    def _files(self) -> dict[str, str]:
        if (self.folder / INDEX).is_file():
            files = read_object(self.folder / INDEX, CheckpointError).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
                raise CheckpointError(f"{self.folder / INDEX}: names no file for each tensor")
            outside = [file for file in files.values() if Path(file).name != file]
            if outside:
                raise CheckpointError(f"{self.folder / INDEX}: {outside[0]!r} is not a file beside it")
            return files
        path = self.folder / WEIGHTS
        try:
            with safe_open(path, framework="pt") as file:
                return dict.fromkeys(file.keys(), WEIGHTS)
        except (SafetensorError, OSError) as error:
            hint = "older files (pytorch_model.bin) can run code when they are read; convert them to safetensors first"
            raise CheckpointError(f"{path}: {error}", hint=hint) from error


def write_published(folder: Path, config: dict[str, Any], tensors: Iterator[tuple[str, Tensor]], limit: int) -> None:
    """Write config.json and `tensors`, in as many files as it takes for none to exceed `limit` bytes by more than one
    tensor. Raises OSError.
    """
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    parts: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = 0
    for name, tensor in tensors:
        held[name] = tensor
        total += tensor.numel() * tensor.element_size()
        if sum(each.numel() * each.element_size() for each in held.values()) >= limit:
            _write_part(folder, parts, held)
    if held or not parts:
        _write_part(folder, parts, held)
    if len(parts) == 1:
        _part(folder, 0).rename(folder / WEIGHTS)
        return
    files = {}
    for index, names in enumerate(parts):
        file = f"model-{index + 1:05d}-of-{len(parts):05d}.safetensors"
        _part(folder, index).rename(folder / file)
        files.update(dict.fromkeys(names, file))
    index_text = json.dumps({"metadata": {"total_size": total}, "weight_map": files}, indent=2, sort_keys=True)
    (folder / INDEX).write_text(index_text + "\n", encoding="utf-8")


def _write_part(folder: Path, parts: list[list[str]], held: dict[str, Tensor]) -> None:
    write_tensors(_part(folder, len(parts)), held, NOTE)
    parts.append(list(held))
    held.clear()


def _part(folder: Path, index: int) -> Path:
    return folder / f".part-{index}"
