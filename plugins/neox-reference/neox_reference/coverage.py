"""How many of the documents' parameters and of the known names this version has."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli
from attrs import frozen
from neox_gpt_neox.api import known

from neox_core.hooks.registry import Registry
from neox_reference.keys import Key, State, all_keys

LEDGER = Path(__file__).with_name("ledger.toml")
BEST: tuple[State, ...] = ("implemented", "older spelling", "known only")


@frozen
class Row:
    """Counts of one area, or of one kind of component (which has no older spellings)."""

    name: str
    implemented: int
    older: int
    known_only: int

    @property
    def total(self) -> int:
        return self.implemented + self.older + self.known_only


def ledger() -> Mapping[str, Any]:
    """ledger.toml: the `parameters` and `features` of the documents."""
    table: dict[str, Any] = tomli.loads(LEDGER.read_text(encoding="utf-8"))
    return table


def states(keys: Iterable[Key]) -> dict[str, State]:
    """Each path, in each of its spellings, with the best that any owner makes of it."""
    found: dict[str, State] = {}
    for key in keys:
        for path in key.spellings:
            found[path] = min(found.get(path, "known only"), key.state, key=BEST.index)
    return found


def key_rows(registry: Registry) -> tuple[Row, ...]:
    """The parameters of the documents by area; without a plugin's package, its keys are only known."""
    state_of = states(all_keys(registry))
    areas: dict[str, list[State]] = {}
    for path, documented in ledger()["parameters"].items():
        areas.setdefault(documented["area"], []).append(state_of.get(path, "known only"))
    return tuple(Row(area, *(mine.count(state) for state in BEST)) for area, mine in areas.items())


def other_keys(registry: Registry) -> int:
    """How many keys this version has that are in none of the documents."""
    documented = ledger()["parameters"].keys()
    own = (key for key in all_keys(registry) if key.state == "implemented")
    return len({key.path for key in own if not set(key.spellings) & documented})


def name_rows(registry: Registry) -> tuple[Row, ...]:
    """The names that a config can choose, of each kind that has any."""
    rows = []
    for kind in registry.kinds.values():
        installed = set(registry.names(kind.name)) if kind.used else set()
        later = set(known().components.get(kind.name, {})) - installed
        if kind.key and (installed or later):
            rows.append(Row(kind.name, len(installed), 0, len(later)))
    return tuple(rows)


def total(rows: Iterable[Row]) -> Row:
    """The sum of rows."""
    listed = tuple(rows)
    counts = ((row.implemented, row.older, row.known_only) for row in listed)
    return Row("total", *(sum(column) for column in zip(*counts, strict=True)))
