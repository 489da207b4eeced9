"""A plugin in the folder of its sources, seen as if it were installed: for `neox plugins test`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomli
from attrs import frozen

from neox_core.errors import PluginError, UsageError
from neox_core.files import read_bytes
from neox_core.hooks.component import GROUP
from neox_core.hooks.registry import normalise
from neox_core.untrusted import short

MAX_BYTES = 4 << 20
_LINE = re.compile(r"[^\x00-\x1f\x7f]+")


@frozen
class Project:
    """A plugin as its pyproject.toml describes it, and the folder that its modules are imported from."""

    name: str
    modules: Path
    metadata: str
    entry_points: str


def read_project(folder: Path) -> Project:
    """The plugin in a folder. Raises PluginError where its pyproject.toml is not that of a plugin."""
    file = folder / "pyproject.toml"
    try:
        table = tomli.loads(read_bytes(file, MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder} has no pyproject.toml", hint="give the folder of a plugin, or its name") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PluginError(f"{file}: cannot be read: {short(error)}") from None
    project = _table(file, table, "project")
    points = _table(file, _table(file, project, "entry-points"), GROUP)
    lines = [f"{key} = {value}" for key, value in _texts(file, points.items())]
    name = str(project.get("name", ""))
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise PluginError(f"{file}: [project] has no name of a distribution: {name!r}")
    metadata = [("Metadata-Version", "2.1"), ("Name", name), ("Version", project.get("version", "0"))]
    metadata += [("Keywords", word) for word in [",".join(map(str, _list(file, project, "keywords")))] if word]
    metadata += [("Requires-Dist", each) for each in _list(file, project, "dependencies")]
    written = "".join(f"{key}: {value}\n" for key, value in _texts(file, metadata))
    modules = folder / "src" if (folder / "src").is_dir() else folder
    return Project(normalise(name), modules.resolve(), written, "\n".join([f"[{GROUP}]", *lines, ""]))


@contextmanager
def as_installed(project: Project) -> Iterator[tuple[str, str]]:
    """The folders to put before others on the path of a process, in which the plugin is then installed."""
    with TemporaryDirectory() as folder:
        info = Path(folder) / f"{project.name.replace('-', '_')}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(project.metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(project.entry_points, encoding="utf-8")
        yield folder, str(project.modules)


def _table(file: Path, table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    if not isinstance(found, dict):
        hint = "`neox plugins new` writes a whole one; of an installed plugin, give the name"
        raise PluginError(f"{file}: no table {name!r}, so this is not the folder of a plugin", hint=hint)
    return found


def _list(file: Path, project: dict[str, Any], name: str) -> list[Any]:
    found = project.get(name, [])
    if not isinstance(found, list):
        raise PluginError(f"{file}: {name} is not a list")
    return found


def _texts(file: Path, pairs: Any) -> Iterator[tuple[str, str]]:
    """Pairs of one line each, so that nothing else gets into the metadata."""
    for key, value in pairs:
        if not isinstance(value, str) or not _LINE.fullmatch(value) or not _LINE.fullmatch(key):
            raise PluginError(f"{file}: {key!r} has to be one line of text, not {value!r}")
        yield key, value
