"""The sections of a config, and the owner of each of its top-level keys."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded, value_at
from neox_core.config.report import spell
from neox_core.config.schema.convert import UNKNOWN_KEY, block_of, by_key, join, make, read_fields
from neox_core.config.schema.owners import CORE, Owners, block_name, named, named_section
from neox_core.config.schema.unknown import explain_inner
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import ConfigSection
from neox_core.hooks.registry import Entry, normalise


class Keys:
    """The state of reading a config: sections, the reader of each key, and the problems."""

    def __init__(self, loaded: Loaded, catalog: Catalog, owners: Owners) -> None:
        self.loaded = loaded
        self.catalog = catalog
        self.owners = owners
        self.problems: list[Problem] = []
        self.sections: dict[type, Any] = {}
        self.fields: dict[str, Any] = {}
        self.expected: set[str] = set()
        self.read: set[str] = set()
        self.own: dict[str, dict[str, Any]] = {}
        self.in_use: set[str] = set()
        self.read_before: list[ConfigSection] = []
        self.takers: dict[str, dict[str, str]] = {}
        self.components: dict[str, list[Entry]] = defaultdict(list)

    def report(self, problem: Problem) -> None:
        """Add a problem whose key is a normalised path, with its position and the user's spelling."""
        inner = problem.message == UNKNOWN_KEY and "." in problem.key
        value = value_at(self.loaded.values, problem.key)
        for each in explain_inner(problem, value, self.catalog) if inner else (problem,):
            self.place(each)

    def place(self, problem: Problem) -> None:
        """The problem with its position and the user's spelling of its key."""
        key = self.loaded.spelled(problem.key) or spell(problem.key)
        self.problems.append(evolve(problem, key=key, where=self.loaded.where(problem.key)))

    def without_secrets(self, cls: type, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The values without secrets, which are refused: configs and messages with values are copied and shared."""
        kept: dict[str, Any] = {}
        for key, value in values.items():
            field = by_key(cls).get(key)
            block = block_of(field.type) if field is not None else None
            if field is not None and field.info.secret and value is not None:
                hint = "remove it, and set the environment variable of the service"
                self.report(Problem("is a secret, which must not be in a config", join(path, key), hint))
            elif block is not None and isinstance(value, Mapping):
                kept[key] = self.without_secrets(block, value, join(path, key))
            else:
                kept[key] = value
        return kept

    def read_core_sections(self) -> None:
        """Read the sections of the core."""
        for owner, section in self.owners.sections:
            if owner == CORE:
                self._read_section(owner, section, by_key(section.settings))

    def read_choosing_sections(self) -> None:
        """Those with a key that chooses a component of a kind which the same plugin defines."""
        registry = self.catalog.registry
        heads = {(plugin.id, registry.kinds[kind].key.partition(".")[0]) for kind, plugin in registry.definers.items()}
        for owner, section in self.owners.sections:
            if any((owner, key) in heads for key in by_key(section.settings)):
                self._read_section(owner, section, by_key(section.settings))
                self.read_before.append(section)
                if not self.loaded.values.keys().isdisjoint(by_key(section.settings)):
                    self.in_use.add(owner)

    def read_plugin_sections(self) -> None:
        """Read the sections of plugins that are in use, then the others, which get only keys that nobody has read."""
        sections = [each for each in self.owners.sections if each[0] != CORE and each[1] not in self.read_before]
        required = getattr(self.fields.get("plugins"), "require", ())
        self.in_use |= {normalise(each) for each in required}
        for owner, section in sections:
            if any(self._belongs_to_one(key) for key in by_key(section.settings) if key in self.loaded.values):
                self.in_use.add(owner)
        active = [each for each in sections if each[0] in self.in_use]
        for owner, section in active:
            self._read_section(owner, section, by_key(section.settings))
        taken = set(self.takers)
        for owner, section in (each for each in sections if each not in active):
            keys = [key for key in by_key(section.settings) if key not in taken]
            self._read_section(owner, section, keys)
            if not self.loaded.values.keys().isdisjoint(keys):
                self.in_use.add(owner)

    def _belongs_to_one(self, key: str) -> bool:
        sections = [each for each in self.owners.sections if key in by_key(each[1].settings)]
        return len(sections) == 1 and key not in self.owners.components_of

    def _read_section(self, owner: str, section: ConfigSection, keys: Iterable[str]) -> None:
        self._make_section(owner, section.settings, self.take(keys, named_section(owner, section)))

    def _make_section(self, owner: str, cls: type, mine: Mapping[str, Any]) -> None:
        self.expected |= by_key(cls).keys()
        found = read_fields(cls, self.without_secrets(cls, mine, ""), "", self.report)
        self.keep(owner, found)
        if (instance := make(cls, found, "", self.report)) is not None:
            self.sections[cls] = instance

    def read_sections_of(self, entry: Entry) -> None:
        """Those of a component that the config chooses."""
        for section in entry.component.sections:
            self._make_section(entry.plugin.id, section.settings, self.take(by_key(section.settings), entry))

    def keep(self, owner: str, found: Mapping[str, Any]) -> None:
        """Keep the values of keys; of a key with several owners, that of the core, else of the first owner."""
        self.own.setdefault(owner, {}).update(found)
        self.fields = {**found, **self.fields}

    def take(self, keys: Iterable[str], by: Entry | str) -> dict[str, Any]:
        """The top-level values of keys, which are marked as read. by: the component, or the section in words."""
        mine = {key: self.loaded.values[key] for key in keys if key in self.loaded.values}
        self.read.update(mine)
        for key in mine:
            takers = self.takers.setdefault(key, {})
            if isinstance(by, str):
                takers[by] = ""
            elif by.kind not in {entry.kind for entry in self.components[key]}:  # those of one kind may share a key
                takers[named(by)] = block_name(by)
                self.components[key].append(by)
        return mine
