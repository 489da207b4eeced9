"""Plugins that are switched off: by the environment, or by the current project."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli

from neox_core.errors import PluginError
from neox_core.files import read_bytes
from neox_core.hooks.registry import normalise
from neox_core.untrusted import short

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
        names = _names(file) if file.is_file() else None
        if names is not None:
            off.update((normalise(name), str(file)) for name in names)
            break
    off.update((normalise(name), VARIABLE) for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
    return off


def misspelt() -> list[str]:
    """Variables of the environment with nearly the name of VARIABLE."""
    names = (short(name) for name in os.environ if name.startswith("NEOX_") and name != VARIABLE)
    return get_close_matches(VARIABLE, names, cutoff=0.59)


def _names(file: Path) -> list[str] | None:
    try:
        text = read_bytes(file, MAX_BYTES).decode("utf-8")
        tool: Any = tomli.loads(text).get("tool") if "neox" in text else None
    except (OSError, ValueError, RecursionError) as error:
        raise PluginError(f"{file}: cannot read [tool.neox]: {short(error)}") from error
    table: Any = tool.get("neox") if isinstance(tool, dict) else None
    if table is None:
        return None
    names = table.get("disable", []) if isinstance(table, dict) and set(table) <= {"disable"} else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        hint = 'its only setting is a list of names, disable = ["neox-a"]'
        raise PluginError(f"{file}: [tool.neox] is {short(repr(table))}", hint=hint)
    return names
