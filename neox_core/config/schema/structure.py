"""Turns what was written into a `Config`: every key has one owner, every value the type of its field.

Keys belong to the core's sections, to plugins' sections, and to the components that the config chooses. All problems of
all sections are collected, and a key that nothing reads is a problem.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded
from neox_core.config.report import ProblemsError, errors, spell
from neox_core.config.schema.choose import Chosen, Reading
from neox_core.config.schema.convert import make, read_fields
from neox_core.config.schema.noted import noted
from neox_core.config.schema.owners import Owners, block_name, find_owners, settings_by_key, spellings
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.kinds import KIND_BY_NAME, Kind

__all__ = ["Chosen", "Config", "SectionInvalidError", "structure", "structure_settings"]

T = TypeVar("T")


class SectionInvalidError(LookupError):
    """A section with problems was requested; the report has these problems already."""


@frozen
class Config:
    """What was written, with defaults filled in.

    ledger: where reading is noted, so that a key which nothing reads can be refused; None: reading is not noted.
    own: plugin -> the values of its own keys, which win where `viewer`, the plugin that asks, has a key in
        common with another. in_use: the plugins that own a key or a choice of the config.
    """

    sections: Mapping[type, Any]
    fields: Mapping[str, Any]
    loaded: Loaded
    chosen: Mapping[str, tuple[Chosen, ...]] = field(factory=dict)
    spellings: Mapping[str, tuple[str, ...]] = field(factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(factory=dict, repr=False)
    owners: Owners | None = field(default=None, eq=False, repr=False)
    in_use: frozenset[str] = frozenset()
    viewer: str = ""
    kinds: Mapping[str, Kind] = field(default=KIND_BY_NAME, eq=False, repr=False)
    ledger: set[str] | None = field(default=None, eq=False, repr=False)

    def section(self, cls: type[T]) -> T:
        """The settings of one section, by their class. Raises SectionInvalidError when it has problems."""
        try:
            settings: T = self.sections[cls]
            return settings if self.ledger is None else noted(settings, "", self.ledger)
        except KeyError:
            raise SectionInvalidError(cls.__name__) from None

    def value(self, key: str) -> Any:
        """A value by its dotted key, `-` or `_`; of a component that is not chosen the default, None without one.

        Raises KeyError for a key that nothing installed has.
        """
        head, *rest = key.replace("-", "_").split(".")
        found = (self.own.get(self.viewer, {}), self.fields, self._blocks)
        mine = next((each for each in found if head in each), None)
        if mine is None:
            return self._default(head, rest)
        value, path = mine[head], head
        self.note(head)
        try:
            for part in rest:
                value, path = value[part] if isinstance(value, Mapping) else getattr(value, part), f"{path}.{part}"
                self.note(path)
        except (KeyError, AttributeError):
            return self._default(head, rest)
        return value

    def seen_by(self, plugin: str) -> "Config":
        """The same config, as the rules of a plugin see it: a key that two plugins have means that plugin's own."""
        return evolve(self, viewer=plugin)

    def note(self, *keys: str) -> None:
        """Say that keys are read: `section` and `value` do, and who knows that a key has no effect beside another."""
        if self.ledger is not None:
            for key in keys:
                self.ledger.add(key)

    @property
    def _blocks(self) -> Mapping[str, Any]:
        """The settings of chosen components, by the names of the blocks that may hold them."""
        chosen = (one for several in self.chosen.values() for one in several)
        return {block_name(one.entry): one.settings for one in chosen if one.settings is not None and not one.path}

    def _default(self, head: str, rest: Sequence[str]) -> Any:
        """The default of a key of a component that is not chosen: flat, in the block of its name or of its kind."""
        entries = self.owners.of(".".join([head, *rest])) if self.owners else ()
        if not entries:
            raise KeyError(".".join([head, *rest]))
        entry = next((each for each in entries if each.plugin.id == self.viewer), entries[0])
        known, (name, *inner) = settings_by_key(entry), (head, *rest)
        while name not in known and inner:
            name, *inner = inner
        value = None if known[name].required else known[name].default
        for part in inner:
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        return value

    def is_set(self, key: str) -> bool:
        """Whether the config writes the key, in any spelling."""
        return self._path(key) in self.loaded.places

    def origin(self, key: str) -> str:
        """The position "file:line:column", or "--set", or "default"."""
        place = self.loaded.places.get(self._path(key))
        return place.where if place else "default"

    def _path(self, key: str) -> str:
        """The dotted path of a key, in the spelling that the config uses."""
        path = key.replace("-", "_")
        return next((each for each in self.spellings.get(path, ()) if each in self.loaded.places), path)

    def components(self, kind: str) -> tuple[Chosen, ...]:
        """The chosen components of one kind, each with `settings`; none of a kind that no installed plugin defines.

        Raises SectionInvalidError when it has problems.
        """
        known = self.kinds.get(kind)
        if known is None:
            return ()
        self.note(known.key, known.settings_at)
        try:
            return self.chosen[kind]
        except KeyError:
            raise SectionInvalidError(kind) from None

    def spelled(self, key: str) -> str:
        """A key as the config writes it, or would."""
        path = self._path(key)
        return self.loaded.spelled(path) or spell(path)

    def problem(self, message: str, key: str, hint: str = "", severity: str = "error") -> Problem:
        """A problem at the position of a key, spelled as the user wrote it."""
        return Problem(message, self.spelled(key), hint, self.loaded.where(self._path(key)), severity)


def structure_settings(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """An instance of an attrs class of settings. Raises ConfigError listing every problem."""
    problems: list[Problem] = []
    made: T = make(cls, read_fields(cls, _normal(values), path, problems.append), path, problems.append)
    if errors(problems):
        raise ProblemsError(problems)
    return made


def _normal(value: Any) -> Any:
    """Keys with `_` for `-`, at every depth."""
    if isinstance(value, Mapping):
        return {str(key).replace("-", "_"): _normal(inner) for key, inner in value.items()}
    return value


def structure(loaded: Loaded, catalog: Catalog) -> tuple[Config, tuple[Problem, ...]]:
    """Structure a loaded config: (config, problems)."""
    work = Reading(loaded, catalog, find_owners(catalog.registry))
    work.read_core_sections()
    work.read_choosing_sections()
    work.choose()
    work.read_plugin_sections()
    work.settle_keys()
    work.read_rest()
    classes = [section.settings for _, section in work.owners.sections]
    chosen = (one.entry.component for several in work.chosen.values() for one in several)
    classes += [section.settings for component in chosen for section in component.sections]
    known = dict(spellings(classes)) | dict(work.spellings_of_chosen())
    config = Config(
        work.sections,
        work.fields,
        loaded,
        work.chosen,
        known,
        own=work.own,
        owners=work.owners,
        in_use=frozenset(work.in_use),
        kinds=catalog.registry.kinds,
    )
    return config, tuple(work.problems)
