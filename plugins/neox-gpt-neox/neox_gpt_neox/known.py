"""Keys and names of the documents that this version knows but does not have, and the package that each will come with.

Both tables are data files, read when something needs an explanation: a config without mistakes never opens them.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tomli
from attrs import field, frozen

KNOWN_KEYS = Path(__file__).with_name("known_keys.toml")
GPT_NEOX = Path(__file__).with_name("gpt_neox.toml")


@frozen
class KnownKey:
    """A key that a later version will have.

    path: dotted, with `_`; `<word>` in it stands for a name of the user's choice.
    type: bool, int, float, str, choice, mapping, or list[...] of these.
    default: None where the documents do not name one.
    distribution: the package that will implement it, or would. why: what speaks against it, where none will.
    """

    path: str
    type: str
    help: str
    distribution: str
    area: str
    default: Any = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    origin: str = "deepspeed"
    changes: str = "numerics"
    aliases: tuple[str, ...] = ()
    why: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The path of the key and those of its aliases."""
        block, dot, name = self.path.rpartition(".")
        return tuple(f"{block}{dot}{each}" for each in (name, *self.aliases))


@frozen
class Known:
    """Keys by path, and for each kind the distribution of each name."""

    keys: Mapping[str, KnownKey]
    components: Mapping[str, Mapping[str, str]]
    _spellings: Mapping[str, str] = field(alias="spellings")

    def find(self, path: str) -> KnownKey | None:
        """The key that a path of a config names, an alias or a block of the user's naming included."""
        found = ""
        for part in path.split("."):
            near = f"{found}.{part}" if found else part
            within = (path.removeprefix(f"{found}.<") for path in self.keys if path.startswith(f"{found}.<"))
            wild = next((f"<{each.partition('.')[0]}" for each in within), "")
            found = self._spellings.get(near) or (f"{found}.{wild}" if wild else near)
        return self.keys.get(found)

    def names_in(self, block: str) -> tuple[str, ...]:
        """The keys of a block, "" for the top level, each by the last part of its path."""
        paths = (path.rpartition(".") for path in self.keys)
        return tuple(name for parent, _, name in paths if parent == block)


@cache
def known() -> Known:
    """known_keys.toml."""
    table = tomli.loads(KNOWN_KEYS.read_text(encoding="utf-8"))
    keys = {key.path: key for group in table["group"] for key in _keys(group)}
    spellings = {path: key.path for key in keys.values() for path in key.spellings}
    return Known(keys, {kind: _by_name(offers) for kind, offers in table["components"].items()}, spellings)


@frozen
class Foreign:
    """A key of later GPT-NeoX that neither this version nor a planned one has.

    part: what it is for. rests: the value at which it has no effect, () where there is none. idle: no value has one.
    """

    part: str
    hint: str
    rests: tuple[Any, ...] = ()
    idle: bool = False


@cache
def gpt_neox() -> tuple[Mapping[str, Foreign], Mapping[str, Mapping[str, str]]]:
    """gpt_neox.toml: keys, and by kind the hint for each name that a key of GPT-NeoX may choose."""
    table = tomli.loads(GPT_NEOX.read_text(encoding="utf-8"))
    keys: dict[str, Foreign] = {}
    for group in table["group"]:
        said = (group["part"], group.get("hint", "remove it"))
        keys |= {key: Foreign(*said) for key in group.get("keys", ())}
        keys |= {key: Foreign(*said, idle=True) for key in group.get("idle", ())}
        keys |= {key: Foreign(*said, (value,)) for key, value in group.get("at_rest", {}).items()}
    return keys, table["names"]


def _keys(group: Mapping[str, Any]) -> Iterator[KnownKey]:
    shared = {name: group[name] for name in ("distribution", "area", "origin", "changes") if name in group}
    for name, said in group["keys"].items():
        lists = {each: tuple(said[each]) for each in ("choices", "aliases") if each in said}
        path = f"{group['block']}.{name}" if "block" in group else name
        yield KnownKey(path, **{**shared, **said, **lists})


def _by_name(offers: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Name -> package, from the names of each package."""
    return {name: package for package, names in offers.items() for name in names}
