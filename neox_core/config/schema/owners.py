"""Who owns each top-level key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property

from attrs import field, frozen

from neox_core.config.dialects import older_keys
from neox_core.config.schema.convert import Field, block_of, by_key, fields_of
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.hooks.component import ConfigSection
from neox_core.hooks.registry import Entry, Registry

CORE = "neox-core"


@frozen
class Owners:
    """Sections in the order of reading, and the components that each flat key belongs to.

    A key may have several owners; a config that writes the key decides which one reads it.
    sections: (id of the plugin, or CORE, section). section_of: the first section of each key.
    """

    sections: tuple[tuple[str, ConfigSection], ...]
    section_of: Mapping[str, str]
    registry: Registry = field(eq=False, repr=False)

    @cached_property
    def components_of(self) -> Mapping[str, tuple[Entry, ...]]:
        """The components of each key. The first look imports the settings of all of them, which takes 40 ms."""
        found: dict[str, tuple[Entry, ...]] = {}
        for entry in self._flat():
            for key in by_key(entry.component.settings):
                found[key] = (*found.get(key, ()), entry)
        for entry, section in self.registry.sections_of_components():
            for key in by_key(section.settings):
                found[key] = (*found.get(key, ()), entry)
        return found

    @cached_property
    def blocks(self) -> Mapping[str, tuple[Entry, ...]]:
        """The components whose settings a block of that name may hold: `xpos: {...}`."""
        found: dict[str, tuple[Entry, ...]] = {}
        for entry in self._flat():
            name = block_name(entry)
            if "." not in name and name not in self.section_of and name not in self.components_of:
                found[name] = (*found.get(name, ()), entry)
        return found

    def _flat(self) -> Iterator[Entry]:
        return (e for e in self.registry.entries() if not e.definition.settings_at and e.component.given is not None)

    def keys(self) -> tuple[str, ...]:
        """Every key that can be written in this environment."""
        return (*self.section_of, *self.components_of, *self.blocks)

    def of(self, key: str) -> tuple[Entry, ...]:
        """The components that a flat key, the block of that name, or a key in the block of a kind belongs to."""
        head, (block, _, last) = key.partition(".")[0], key.rpartition(".")
        inside = (each for each in self.registry.entries() if block and each.definition.settings_at == block)
        found = tuple(each for each in inside if last in settings_by_key(each))
        return found or self.components_of.get(head) or self.blocks.get(head, ())


def find_owners(registry: Registry) -> Owners:
    """The owners of every key."""
    sections = [*((CORE, each) for each in CORE_SECTIONS), *((plugin.id, each) for plugin, each in registry.sections)]
    older = older_keys(registry)
    section_of: dict[str, str] = dict(older)
    for owner, section in sections:
        for key in by_key(section.settings):
            if key not in section_of or key in older:
                section_of[key] = named_section(owner, section)
    return Owners(tuple(sections), section_of, registry)


def settings_by_key(entry: Entry) -> Mapping[str, Field]:
    """The flat keys of a component: of its settings, and of its sections."""
    classes = [*(section.settings for section in entry.component.sections), entry.component.settings]
    return {key: field for cls in classes for key, field in by_key(cls).items()}


def block_name(entry: Entry) -> str:
    """The key of the block that may hold the settings of a component."""
    return entry.component.name.replace("-", "_")


def named(entry: Entry) -> str:
    """The owner of a component's settings, for messages."""
    return f"{entry.plugin.id} ({entry.kind} {entry.component.name})"


def named_section(owner: str, section: ConfigSection) -> str:
    """The owner of a section's keys, for messages."""
    return f"{owner} (section {section.name})"


def two_owners(names: Sequence[str]) -> str:
    """The message about a key with several owners."""
    return f"has {'two' if len(names) == 2 else len(names)} owners: {' and '.join(names)}"


def spellings(classes: Iterable[type]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Dotted path -> all paths with the same meaning."""
    return (pair for each in classes for pair in _spellings_of(each))


@cache
def _spellings_of(cls: type) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for each in fields_of(cls):
        found.append((each.name, each.keys))
        for inner, paths in spellings(filter(None, [block_of(each.type)])):
            found.append((f"{each.name}.{inner}", tuple(f"{outer}.{path}" for outer in each.keys for path in paths)))
    return tuple(found)
