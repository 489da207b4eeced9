"""How to install what is missing.

On a package index anybody may own a name. So the hint for a first-party plugin gives its folder, for a third-party
one the address in its own metadata, and for a module only a requirement that the plugin itself declares.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any

import tomli

from neox_core.errors import PluginError
from neox_core.hooks.registry import Entry, normalise

PACKAGES = Path(__file__).with_name("packages.toml")
"""The names, keys and hooks of each first-party package."""

_ADDRESS = re.compile(r"https?://[!-~]{1,200}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@cache
def first_party_plugins() -> frozenset[str]:
    """The ids of the plugins in neox's own repository that a config can need."""
    table = _packages()
    return frozenset(table["keys"]).union(table["hooks"], *table["components"].values())


def package_of_key(key: str) -> str:
    """The first-party package that has a top-level key; "" where none has."""
    return next((package for package, mine in _packages()["keys"].items() if key in mine), "")


def package_of(kind: str, name: str) -> str:
    """The first-party package that offers a component; "" where none does."""
    return packages_of(kind).get(name, "")


def packages_of(kind: str) -> Mapping[str, str]:
    """The first-party package that offers it, for each name of a kind."""
    offers = _packages()["components"].get(kind, {})
    return {name: package for package, names in offers.items() for name in names}


@cache
def first_party_hooks() -> Mapping[str, str]:
    """Hook of a kind -> the plugin in neox's own repository that defines it."""
    return {hook: package for package, hooks in _packages()["hooks"].items() for hook in hooks}


@cache
def _packages() -> dict[str, Any]:
    return tomli.loads(PACKAGES.read_text(encoding="utf-8"))


def how_to_install(*plugins: str) -> str:
    """How to install missing plugins, or another version of them."""
    ids = tuple(dict.fromkeys(map(normalise, plugins)))
    ours = [f"./plugins/{each}" for each in ids if each in first_party_plugins()]
    found = [f"`pip install {' '.join(ours)}` in the repository of neox"] if ours else []
    found += [f"install {each} from {_home(each) or 'its author'}" for each in ids if each not in first_party_plugins()]
    return "; ".join(found)


def how_to_get(modules: Iterable[str], plugin: str) -> str:
    """How to install the missing modules of a plugin."""
    declared = {normalise(each): each for each in (*requirements("neox-core"), *requirements(plugin))}
    names = {module: declared.get(normalise(module), "") for module in modules}
    known = [name for name in names.values() if name]
    found = [f"pip install {' '.join(known)}"] if known else []
    if others := [module for module, name in names.items() if not name]:
        found.append(f"install {', '.join(others)} as {_home(plugin) or f'the author of {plugin}'} says")
    return "; ".join(found)


def require_modules(entry: Entry) -> None:
    """Raises PluginError for a component that needs modules which are not installed."""
    if missing := entry.component.missing():
        message = f"{entry.kind} {entry.qualified} needs {', '.join(missing)}, not installed"
        raise PluginError(message, hint=how_to_get(missing, entry.plugin.id))


def _home(plugin: str) -> str:
    """The home page in the metadata of an installed distribution; "" where there is none."""
    try:
        said = metadata(plugin)
    except (PackageNotFoundError, ValueError):
        return ""
    urls = [said["Home-page"] or "", *(each.partition(",")[2].strip() for each in said.get_all("Project-URL") or ())]
    return next((url for url in urls if _ADDRESS.fullmatch(url)), "")


def requirements(plugin: str) -> tuple[str, ...]:
    """The distributions that an installed one requires, also in its extras."""
    try:
        found = requires(plugin) or []
    except (PackageNotFoundError, ValueError):
        return ()
    return tuple(match[0] for match in map(_REQUIREMENT.match, found) if match)
