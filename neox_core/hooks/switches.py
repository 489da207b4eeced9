"""Plugins that are switched off: by the environment, or by the current project."""

import os
from pathlib import Path
from typing import Any

import tomli

from neox_core.errors import PluginError
from neox_core.files import read_bytes
from neox_core.hooks.registry import normalise

VARIABLE = "NEOX_PLUGINS_DISABLE"
MAX_BYTES = 4 << 20


def disabled_plugins(start: Path | None = None) -> dict[str, str]:
    """Plugin id -> what switches it off: NEOX_PLUGINS_DISABLE (comma separated), or the nearest pyproject.toml from
    `start` (default: the working directory) upwards that has `[tool.neox] disable = [...]`.

    Raises PluginError for a pyproject.toml that cannot be read, or whose [tool.neox] has anything else in it.
    """
    here = (start or Path.cwd()).resolve()
    off: dict[str, str] = {}
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        table = _tool_neox(file) if file.is_file() else None
        if table is not None:
            off.update((normalise(name), str(file)) for name in _names(file, table))
            break
    off.update((normalise(name), VARIABLE) for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
    return off


def _tool_neox(file: Path) -> dict[str, Any] | None:
    try:
        text = read_bytes(file, MAX_BYTES).decode("utf-8")
        if "neox" not in text:
            return None
        tool = tomli.loads(text).get("tool", {})
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        raise PluginError(f"{file}: cannot read [tool.neox]: {error}") from error
    table: dict[str, Any] | None = tool.get("neox")
    return table


def _names(file: Path, table: dict[str, Any]) -> list[str]:
    if unknown := sorted(set(table) - {"disable"}):
        raise PluginError(
            f"{file}: [tool.neox] has no setting {unknown[0]!r}", hint="use its only setting, disable = [...]"
        )
    names = table.get("disable", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PluginError(f"{file}: [tool.neox] disable = {names!r} is not a list of plugin names")
    return names
