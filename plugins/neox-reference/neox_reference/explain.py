"""Which keys a name means, in any spelling and at any depth."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from neox_core.config.report import spell
from neox_core.errors import UsageError
from neox_core.hooks.install import how_to_install, package_of_key
from neox_core.hooks.registry import Registry
from neox_reference.keys import Key
from neox_reference.older import older_spellings, targets


def find_keys(name: str, keys: Sequence[Key]) -> tuple[Key, ...]:
    """The keys of a dotted name, one for each owner. Raises UsageError with the nearest names when there is none."""
    inside: dict[str, list[Key]] = defaultdict(list)
    for key in keys:
        inside[key.path.rpartition(".")[0]].append(key)
    found: list[Key] = []
    block = ""
    for part in name.replace("-", "_").split("."):
        here = inside[block]
        found = [key for key in here if part in map(_last, key.spellings)] or [
            key for key in here if "<" in _last(key.path)
        ]
        if not found:
            raise _unknown(name, name.replace("-", "_"), keys)
        block = found[0].path
    return tuple(found)


def older_names(path: str, registry: Registry) -> tuple[str, ...]:
    """The keys of older documents that say what this key says."""
    return tuple(each.key for _, each in older_spellings(registry) if path in targets(each))


def _unknown(spelled: str, name: str, keys: Sequence[Key]) -> UsageError:
    package = package_of_key(name.partition(".")[0])
    if package and all(key.owner != package for key in keys):
        return UsageError(f"{spelled} belongs to {package}, which is not installed", hint=how_to_install(package))
    return UsageError(f"no key {spelled!r}", hint=_near(name, keys))


def _near(name: str, keys: Iterable[Key]) -> str:
    """Keys of other blocks whose own name it is, else those that are spelled alike."""
    paths = list(dict.fromkeys(path for key in keys for path in key.spellings))
    last = _last(name)
    near = [path for path in paths if _last(path) == last] or get_close_matches(name, paths, 3)
    near = near or [path for path in paths if _last(path) in get_close_matches(last, map(_last, paths), 1)]
    return f"did you mean {', '.join(map(spell, near[:5]))}?" if near else "docs/configuration.md lists all keys"


def _last(path: str) -> str:
    return path.rpartition(".")[2]
