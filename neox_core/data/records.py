"""Small JSON records next to a dataset, and digests of the inputs of a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from neox_core.errors import DataError
from neox_core.plan.runfile import ComponentRef
from neox_core.untrusted import read_object

READ_AT_ONCE = 1 << 20
EDGE_BYTES = 1 << 16
BLOCK_BYTES = 1 << 12
MANIFEST = "prepared.json"


def digest_of(*parts: Any) -> str:
    """SHA-256 of values, and of components with the contents of the files that their settings name."""
    known = hashlib.sha256()
    for part in parts:
        if isinstance(part, ComponentRef):
            known.update(f"{part.plugin} {part.version} {part.target}".encode())
            known.update(_settings_of(part).encode())
        else:
            known.update(json.dumps(part).encode())
        known.update(b"\0")
    return known.hexdigest()


def vocabulary_of(tokenizer: ComponentRef) -> str:
    """A SHA-256 that is equal for tokenizers of one kind with equal files, wherever these are."""
    return digest_of(tokenizer.name, _settings_of(tokenizer))


def _settings_of(component: ComponentRef) -> str:
    """The settings, with the hashes of files instead of their paths; of a folder, those of a tokenizer's files."""
    files: dict[str, str] = {}
    for field, value in component.settings.items():
        with suppress(OSError, ValueError):  # for a pattern, which may be longer than a path
            path = Path(str(value))
            found = {field: path} if path.is_file() else {f"{field}/{each.name}": each for each in path.glob("*token*")}
            files |= {name: str(each) for name, each in found.items() if each.is_file()}
    named = {name.partition("/")[0] for name in files}
    rest = {field: value for field, value in component.settings.items() if field not in named}
    return json.dumps(hashes_of(Path(), files), sort_keys=True) + json.dumps(rest, sort_keys=True)


def hashes_of(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """SHA-256 by field; "" for a missing file."""
    paths = {field: folder / name for field, name in files.items()}
    return {field: sha256_of(path) if path.is_file() else "" for field, path in paths.items()}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    known = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(READ_AT_ONCE):
            known.update(chunk)
    return known.hexdigest()


def edge_hash_of(path: Path) -> str:
    """SHA-256 of the length of a file, its start and its end: quick, and enough to distinguish files."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        known = hashlib.sha256(f"{length} ".encode())
        for start in (0, max(0, length - EDGE_BYTES)):
            file.seek(start)
            known.update(file.read(EDGE_BYTES))
    return known.hexdigest()


def spread_hash_of(path: Path, blocks: int) -> str:
    """SHA-256 of the length of a file and of blocks that are spread evenly over it, the first and the last included.

    Quick to read at a start, and enough to detect a dataset that was prepared again, wherever its file is.
    """
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        known = hashlib.sha256(f"{length} ".encode())
        last = max(0, length - BLOCK_BYTES)
        for start in dict.fromkeys(last * place // (blocks - 1) for place in range(blocks)):
            file.seek(start)
            known.update(file.read(BLOCK_BYTES))
    return known.hexdigest()


def prepared_hash_of(path: Path) -> str:
    """SHA-256 of a whole file according to its folder's manifest; "" where that does not list it."""
    return str(read_json(path.parent / MANIFEST).get("sha256", {}).get(path.name, ""))


def require_as_prepared(files: Sequence[Path]) -> int:
    """The number of files that their folder's manifest lists. Raises DataError for a file that differs from it."""
    edges = read_json(files[0].parent / MANIFEST).get("edges", {}) if files else {}
    told = [file for file in files if file.name in edges and file.is_file()]
    for file in told:
        if edge_hash_of(file) != edges[file.name]:
            said = f"{file}: is not the file that was prepared, according to {file.parent / MANIFEST}"
            hint = f"prepare the dataset again, or remove {MANIFEST} if the file was put there on purpose"
            raise DataError(said, hint=hint)
    return len(told)


def read_json(path: Path) -> dict[str, Any]:
    """The content of a record; empty when the file is missing, or is not such a record."""
    try:
        record = read_object(path, DataError)
    except DataError:
        return {}
    tables = (record.get(name, {}) for name in ("sha256", "edges", "files"))
    texts = [record.get(name, "") for name in ("digest", "vocabulary")]
    for table in tables:
        texts += table.values() if isinstance(table, dict) else [table]
    return record if all(isinstance(text, str) for text in texts) else {}
