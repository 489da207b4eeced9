"""How many of the known keys and names this version has."""

from collections.abc import Iterable

from attrs import frozen

from neox_core.config.keys import Key, State, all_keys
from neox_core.config.known import known
from neox_core.hooks.kinds import KINDS
from neox_core.hooks.registry import Registry

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


def states(keys: Iterable[Key]) -> dict[str, State]:
    """Each path with the best that any owner makes of it."""
    found: dict[str, State] = {}
    for key in keys:
        found[key.path] = min(found.get(key.path, "known only"), key.state, key=BEST.index)
    return found


def key_rows(registry: Registry) -> tuple[Row, ...]:
    """The keys of each area, those of the plugins that are installed here included."""
    keys = all_keys(registry)
    area_of = {key.path: key.area for key in reversed(keys)}
    state_of = states(keys)
    rows = []
    for area in dict.fromkeys(area_of[key.path] for key in keys):
        mine = [state for path, state in state_of.items() if area_of[path] == area]
        rows.append(Row(area, *(mine.count(state) for state in BEST)))
    return tuple(rows)


def name_rows(registry: Registry) -> tuple[Row, ...]:
    """The names that a config can choose, of each kind that has any."""
    rows = []
    for kind in KINDS:
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
