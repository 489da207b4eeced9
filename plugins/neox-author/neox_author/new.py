"""`neox plugins new`: a plugin that passes its own tests, to be changed into what its author wants."""

import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from neox_author.template import called_in, filled, folder_of, kit_of, requirements_of
from neox_core.cli.main import SUBCOMMANDS
from neox_core.errors import PluginError, UsageError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.install import first_party_plugins
from neox_core.hooks.installed import API
from neox_core.hooks.kinds import Kind
from neox_core.hooks.registry import normalise

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
"""Of PEP 508, and short enough for a folder."""


def kind_of(catalog: Catalog, said: str) -> Kind:
    """The kind that a user names, with spaces, hyphens or underscores. Raises UsageError for one without a template."""
    kind = catalog.registry.kinds.get(said.replace("-", " ").replace("_", " "))
    if kind is None or folder_of(kind) is None:
        known = ", ".join(name.replace(" ", "-") for name, each in catalog.registry.kinds.items() if folder_of(each))
        what = f"there is no template for a {kind.name}" if kind else f"{said!r} is not a kind of component"
        raise UsageError(what, hint=f"use one of {known}; docs/hooks.md has the contract of each kind")
    return kind


def write_plugin(catalog: Catalog, kind: Kind, distribution: str, parent: Path) -> tuple[Path, tuple[str, ...]]:
    """Write a plugin that offers one component into a new folder. Returns the folder, and the files in it.

    catalog: what is installed, whose names are taken
    distribution: the name of the plugin
    parent: the folder of the new one, which has the plugin's name

    Raises UsageError for a name that cannot be used, and for a folder that there is.
    """
    package, name = _names(catalog, kind, distribution)
    files = _files(catalog, kind, distribution, package, name)
    folder = parent / distribution
    try:
        folder.mkdir()
    except FileExistsError:
        raise UsageError(f"{folder} is there already", hint="use another name, or another --dir") from None
    except OSError as error:
        raise UsageError(f"{folder}: cannot make the folder: {error.strerror}", hint="use another --dir") from None
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(f"{folder}: cannot write: {error.strerror}", hint="free some space, or use --dir") from None
    return folder, tuple(files)


def _names(catalog: Catalog, kind: Kind, distribution: str) -> tuple[str, str]:
    """The import package, and the component's name."""
    if not _NAME.fullmatch(distribution):
        said = f"{distribution!r} cannot be the name of a distribution"
        raise UsageError(said, hint="use 1 to 64 ASCII letters, digits, hyphens, such as neox-sophia")
    package = normalise(distribution).replace("-", "_")
    name = normalise(distribution).removeprefix("neox-")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise UsageError(f"{package!r} cannot be the name of a Python package", hint=f"use neox-{name}, for example")
    for taken in _taken(catalog, kind, distribution, package, name):
        raise UsageError(taken, hint="use another name")
    return package, name


def _taken(catalog: Catalog, kind: Kind, distribution: str, package: str, name: str) -> Iterator[str]:
    if normalise(distribution) in {"neox", "neox-core", *first_party_plugins()}:
        yield f"{distribution} is a package of neox itself"
    if _version(distribution):
        yield f"a distribution {distribution} is installed"
    if package in sys.stdlib_module_names or find_spec(package) is not None:
        yield f"a module {package} is installed, and the package of {distribution} would have its name"
    if kind.name == "command" and name in SUBCOMMANDS:
        yield f"`neox {name}` is a command of neox itself, and that of {distribution} would have its name"
    for known in catalog.registry.names(kind.name):
        if known.lower() == name:
            owner = catalog.registry.offers(kind.name, known)[0].plugin.id
            yield f"{owner} offers the {kind.name} {known!r}, and that of {distribution} would have its name"


def _files(catalog: Catalog, kind: Kind, distribution: str, package: str, name: str) -> dict[str, str]:
    folder = folder_of(kind)
    if folder is None:
        raise PluginError(f"there is no template for a {kind.name}")
    definer = catalog.registry.definers.get(kind.name)
    neox = [_bounded(each) for each in ("neox-core", *([definer.id] if definer else []))]
    kit, _, check = kit_of(kind).partition(":")
    word = name if name[0].isalpha() else normalise(distribution)
    values = {
        "distribution": distribution,
        "package": package,
        "name": called_in(folder, name),
        "key": word.replace("-", "_"),
        "class_name": "".join(part.capitalize() for part in f"{word} {kind.name}".replace("-", " ").split()),
        "a_kind": f"{'An' if kind.name[0] in 'aeiou' else 'A'} {kind.name}",
        "api": API,
        "year": str(datetime.now(timezone.utc).year),
        "dependencies": _quoted("attrs>=23.2", *neox, *requirements_of(folder)),
        "test_dependencies": _quoted(_bounded("neox-author"), "pytest>=8"),
        "check": check,
        "kit": kit,
    }
    return filled(folder, package, values)


def _quoted(*names: str) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _bounded(plugin: str) -> str:
    """A requirement of the installed minor version of one of neox's packages, whose next one may change."""
    found = re.match(r"(\d+)\.(\d+)", _version(plugin))
    return f"{plugin}>={found[0]},<{found[1]}.{int(found[2]) + 1}" if found else plugin


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
