"""The manifest of a folder of datasets, and other small files beside them: what is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neox_core.data.records import MANIFEST, edge_hash_of, read_json, sha256_of
from neox_core.files import replacing


def note_files(files: Sequence[Path], vocabulary: str) -> None:
    """Put finished files into their folder's manifest, beside what it tells of others. Raises OSError."""
    place = files[0].parent / MANIFEST
    record = read_json(place)
    of_others = record.get("vocabulary", "") if record else vocabulary
    record["vocabulary"] = vocabulary if of_others == vocabulary else ""
    for key, hash_of in (("sha256", sha256_of), ("edges", edge_hash_of)):
        record[key] = {**record.get(key, {}), **{file.name: hash_of(file) for file in files}}
    write_json(place, record)


def forget_files(files: Sequence[Path]) -> None:
    """The entries of a manifest for files that are about to be replaced. Raises OSError."""
    place = files[0].parent / MANIFEST
    record = read_json(place)
    if not {file.name for file in files} & (record.get("sha256") or {}).keys():
        return
    for file in files:
        record["sha256"].pop(file.name, None)
        record.get("edges", {}).pop(file.name, None)
    record.pop("digest", None)  # `neox data prepare` would take what replaces them for its own, finished work
    if record["sha256"]:
        write_json(place, record)
    else:
        place.unlink()


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write atomically. Raises OSError."""
    with replacing(path) as new:
        new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def copy_file(source: Path, place: Path) -> None:
    """Copy atomically. Raises OSError."""
    with replacing(place) as new:
        shutil.copyfile(source, new)
