"""Who owns each top-level key."""

from collections.abc import Mapping

from attrs import frozen

from neox_core.config.convert import by_key
from neox_core.config.legacy import LEGACY_KEYS
from neox_core.config.sections import CORE_SECTIONS
from neox_core.errors import PluginError
from neox_core.hooks.kinds import KIND_BY_NAME
from neox_core.hooks.registry import Entry, Registry

CORE = "neox-core"


@frozen
class Owners:
    """Sections in the order they are read, and the components that each flat key belongs to."""

    sections: tuple[type, ...]
    section_of: Mapping[str, str]
    components_of: Mapping[str, tuple[Entry, ...]]

    def keys(self) -> tuple[str, ...]:
        """Every key that can be written in this environment."""
        return (*self.section_of, *self.components_of)


def find_owners(registry: Registry) -> Owners:
    """Raises PluginError naming both when two own one key.

    Components of one kind may share a key, since a config chooses one of them; components of two kinds may not.
    """
    section_of: dict[str, str] = dict.fromkeys(LEGACY_KEYS, f"{CORE} (old spelling)")
    classes: list[type] = []
    sections = [(CORE, section) for section in CORE_SECTIONS]
    sections += [(plugin.id, section) for plugin, section in registry.sections]
    for owner, section in sections:
        classes.append(section.settings)
        for key in by_key(section.settings):
            if key in section_of and not (owner == CORE and key in LEGACY_KEYS):
                raise _two_owners(key, section_of[key], f"{owner} (section {section.name})")
            section_of[key] = f"{owner} (section {section.name})"
    components_of: dict[str, tuple[Entry, ...]] = {}
    for entry in registry.entries():
        if KIND_BY_NAME[entry.kind].settings_at:
            continue
        for key in by_key(entry.component.settings):
            others = components_of.get(key, ())
            if key in section_of:
                raise _two_owners(key, section_of[key], _named(entry))
            if others and others[0].kind != entry.kind:
                raise _two_owners(key, _named(others[0]), _named(entry))
            components_of[key] = (*others, entry)
    return Owners(tuple(classes), section_of, components_of)


def _named(entry: Entry) -> str:
    return f"{entry.plugin.id} ({entry.kind} {entry.component.name})"


def _two_owners(key: str, one: str, other: str) -> PluginError:
    return PluginError(
        f"the config key {key.replace('_', '-')} has two owners: {one} and {other}",
        hint="uninstall one of the two, or switch it off with NEOX_PLUGINS_DISABLE",
    )
