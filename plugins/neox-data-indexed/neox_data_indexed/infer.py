"""`data-impl: infer`: the format of a dataset, by first bytes of a file, or the backend that recognises it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neox_core.config.schema.convert import fields_of
from neox_core.errors import ConfigError
from neox_core.files import open_file
from neox_core.hooks.component import path_of
from neox_core.hooks.registry import Entry, Registry
from neox_core.interpreter import python

LIMIT_S = 60
MISSING = "mmap"
"""The format that a dataset counts as which is not there, or which nothing recognises: another check reports it."""


def data_backend(fields: Mapping[str, Any], registry: Registry) -> str:
    """The name of the backend of the dataset that the keys of a config name; MISSING where there is none.

    A separate process asks the backends, since they may import numpy. Raises ConfigError where several recognise
    the dataset, or where they do not answer.

    fields: the values of top-level keys
    registry: what is installed
    """
    prefix = next(iter(fields.get("train_data_paths") or ()), fields.get("data_path"))
    if prefix is None:
        return MISSING
    known = next((each.component.name for each in registry.entries("data backend") if _has_magic(prefix, each)), "")
    if known or not _something_there(Path(prefix)):
        return known or MISSING
    names = _recognising(prefix, registry)
    if len(names) > 1:
        raise ConfigError(f"{prefix} is recognised by {' and '.join(names)}", hint=f"write data-impl: {names[0]}")
    return names[0] if names else MISSING


def _has_magic(prefix: str, backend: Entry) -> bool:
    """Whether the first bytes of the dataset's file are those that the backend names."""
    if backend.component.magic is None:
        return False
    suffix, magic = backend.component.magic
    try:
        with open_file(Path(f"{prefix}{suffix}")) as stream:
            return stream.read(len(magic)) == magic
    except (OSError, ValueError):
        return False


def _something_there(prefix: Path) -> bool:
    """Whether there is a file or folder that the dataset might be."""
    try:
        return prefix.exists() or any(prefix.parent.glob(f"{_literal(prefix.name)}*"))
    except (OSError, ValueError):
        return False


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _recognising(prefix: str, registry: Registry) -> list[str]:
    backends = list(_askable(registry))
    if not backends:
        return []
    import subprocess  # for the few datasets whose first bytes do not tell

    asked = json.dumps({"backends": backends, "prefix": prefix})
    try:
        done = subprocess.run(
            python("neox_data_indexed.recognise"),
            input=asked,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        names: list[str] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        why = f"within {LIMIT_S} s" if isinstance(error, subprocess.TimeoutExpired) else "and end their process"
        raise ConfigError(
            f"{prefix}: the data backends do not report {why} whether they can read it",
            hint="name the format with data-impl; `neox plugins check` shows what is broken",
        ) from error
    return names


def _askable(registry: Registry) -> Iterator[dict[str, Any]]:
    """The backends that can be built without a setting, as fields of a ComponentRef."""
    for entry in registry.entries("data backend"):
        settings, component = entry.component.settings, entry.component
        required = any(each.required for each in (fields_of(settings) if settings else ()))
        if component.chooses or component.missing() or required:
            continue
        yield {
            "kind": entry.kind,
            "name": component.name,
            "plugin": entry.plugin.id,
            "version": entry.plugin.version,
            "target": component.target,
            "settings_class": path_of(settings) if settings else None,
        }
