"""The code that the ranks of a host load, as one digest for each installed package. Light.

Hosts with the same version of a package may still have other files: an edited module trains with other numbers.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("neox-core", "torch")
SOURCES = frozenset((".py", ".c", ".cpp", ".cu", ".cuh", ".h", ".json", ".toml"))
IN_RECORD = (".py", ".c", ".cpp", ".cu", ".json", ".toml")
"""Of them, those that are looked at in a package that is not editable: torch has thousands of headers."""
LATE_S = 2.0
"""A file that was written so much later than the list of its package may have been edited."""
NOT_INSTALLED = "not installed"
"""In the place of a digest."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def contents(plugins: Iterable[str]) -> dict[str, str]:
    """Digests by package: of neox-core, torch, the plugins of a run, and what they require."""
    wanted = dict.fromkeys((*PACKAGES, *sorted(plugins)))
    needed = (each for name in wanted for each in _required(name))
    return {name: package_digest(name) for name in sorted({*wanted, *needed})}


def package_digest(name: str) -> str:
    """SHA-256 of a package: of the digests that its installation listed, and of source files that were edited since.

    Of one that is installed as editable, of its source files. Shared libraries count by their size alone.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return NOT_INSTALLED
    record = found.read_text("RECORD")
    lines = _of_sources(found) if record is None or _is_editable(found, record) else _of_record(found, record)
    digest = hashlib.sha256(found.version.encode())
    for line in sorted(lines):
        digest.update(f"\n{line}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _of_record(found: Distribution, record: str) -> Iterator[str]:
    """A line for each file with a digest. What pip writes itself, and scripts, differ by the place of installation.

    A look at each file is what takes time, so a cache of digests would save none.
    """
    root = str(found.locate_file(""))
    rows = [row for row in csv.reader(record.splitlines()) if len(row) == 3]
    lists = [row[0] for row in rows if row[0].endswith(".dist-info/RECORD")]
    written = max((_stat(f"{root}/{name}")[1] for name in lists), default=0.0)
    for name, listed, size in rows:
        if not listed or name.startswith("..") or ".dist-info/" in name:
            continue
        yield f"{name} {listed}"
        if name.endswith(IN_RECORD):
            now, at = _stat(f"{root}/{name}")
            if str(now) != size or at > written + LATE_S:
                yield f"{name} is {_file_digest(Path(root, name))}"
        elif name.endswith(".so") or ".so." in name:
            now, _ = _stat(f"{root}/{name}")
            if str(now) != size:
                yield f"{name} has {now} bytes"


def _of_sources(found: Distribution) -> Iterator[str]:
    modules = {each.module.partition(".")[0] for each in found.entry_points if each.group == "neox.plugins"}
    modules.add(re.sub(r"[-.]+", "_", found.name).lower())
    for module in sorted(modules):
        spec = None
        with suppress(ImportError, ValueError):
            spec = find_spec(module)
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in Path(folder).rglob("*"):
                if file.suffix in SOURCES:
                    yield f"{module}/{file.relative_to(folder)} {_file_digest(file)}"
        if spec and not spec.submodule_search_locations and spec.origin:
            yield f"{module} {_file_digest(Path(spec.origin))}"


def _is_editable(found: Distribution, record: str) -> bool:
    """Whether its files lie elsewhere: pip says so, or the list has a path to them in place of modules."""
    if ".pth," in record and ".py," not in record:
        return True
    with suppress(ValueError, AttributeError):
        return bool(json.loads(found.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"))
    return False


def _required(name: str) -> Iterator[str]:
    """What a package requires, without its extras."""
    with suppress(PackageNotFoundError):
        for line in distribution(name).requires or ():
            match = _NAME.match(line)
            if match and "extra ==" not in line:
                yield re.sub(r"[-_.]+", "-", match[0]).lower()


def _stat(file: str) -> tuple[int, float]:
    """(size in bytes, unix seconds of the last change); of a file that is not there, (-1, 0)."""
    try:
        found = os.stat(file)  # noqa: PTH116, a Path takes longer than the look
    except OSError:
        return -1, 0.0
    return found.st_size, found.st_mtime


def _file_digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"
