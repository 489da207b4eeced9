"""Every offer of every plugin, including clashes: nothing is overwritten, renamed or dropped."""

import re
from collections import defaultdict
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from attrs import Factory, field, fields, frozen

from neox_core.errors import PluginError
from neox_core.hooks.component import Component, ConfigSection, load_path
from neox_core.hooks.kinds import KIND_BY_NAME, Kind


def normalise(name: str) -> str:
    """The id of a plugin: a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


class UnknownComponentError(PluginError):
    """No plugin that could be loaded offers the name."""


@frozen
class PluginInfo:
    """The source of a plugin: the normalised name of its distribution, its version, and its listing module."""

    id: str
    version: str
    module: str


def _known(entry: Any) -> Kind:
    return KIND_BY_NAME.get(entry.kind) or Kind(entry.kind, "neox_not_installed")


@frozen
class Entry:
    """One offer and its plugin. kind: its name; definition: what the kind is, by default as the core has it."""

    kind: str
    component: Component
    plugin: PluginInfo
    definition: Kind = field(default=Factory(_known, takes_self=True), repr=False)

    @property
    def qualified(self) -> str:
        """The name that is unique even where two plugins offer the same one."""
        return f"{self.plugin.id}:{self.component.name}"

    def require_planner(self) -> str:
        """The import path of the planner. Raises PluginError where the component has none and its kind needs one."""
        if self.component.planner is None:
            said = f"{self.kind} {self.qualified} {self.plugin.version}: its Component names no planner"
            hint = f"tell the author of {self.plugin.id}: docs/hooks.md has the contract of the kind"
            raise PluginError(said, hint=hint)
        return self.component.planner

    def load(self) -> Any:
        """Import the target. Raises PluginError that names the plugin and the cause."""
        try:
            return load_path(self.component.target)
        except PluginError as error:
            missing = self.component.missing()
            hint = f"install what it needs: {', '.join(missing)}" if missing else "`neox plugins check` shows the cause"
            said = f"{self.kind} {self.qualified} {self.plugin.version}: {error.message}"
            raise PluginError(said, hint=hint) from error


Offer = Entry | ConfigSection


class Registry:
    """Offers by kind and name. kinds: by name, those of the core and then those that plugins define."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = dict(KIND_BY_NAME)
        self.definers: dict[str, PluginInfo] = {}
        self._offers: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self.sections: list[tuple[PluginInfo, ConfigSection]] = []

    def sections_of_components(self) -> Iterator[tuple[Entry, ConfigSection]]:
        """The sections that are read where a component is chosen, each with that component."""
        return ((entry, section) for entry in self.entries() for section in entry.component.sections)

    def add_kind(self, plugin: PluginInfo, kind: Kind) -> None:
        """Add a kind of component that a plugin defines."""
        self.kinds[kind.name], self.definers[kind.name] = kind, plugin

    def kinds_of_plugins(self) -> Iterator[Kind]:
        """Those that are not the core's."""
        return (self.kinds[name] for name in self.definers)

    def add_offer(self, plugin: PluginInfo, offer: Offer) -> None:
        """Add a component, or a section, which belongs to `plugin`."""
        if isinstance(offer, Entry):
            self.add(offer)
        else:
            self.sections.append((plugin, offer))

    def offered(self) -> Iterator[tuple[PluginInfo, Offer]]:
        """Every offer, with its plugin, as `add_offer` takes it."""
        yield from ((entry.plugin, entry) for entry in self.entries())
        yield from self.sections

    def add(self, entry: Entry) -> None:
        """Add a component beside those of the same name."""
        self._offers[entry.kind, entry.component.name].append(entry)

    def entries(self, kind: str | None = None) -> Iterator[Entry]:
        """All offers, of one kind or of all, sorted by kind, name and plugin."""
        for _, entries in sorted(each for each in self._offers.items() if kind in (None, each[0][0])):
            yield from entries

    def offers(self, kind: str, name: str) -> tuple[Entry, ...]:
        """The offers of `name`; more than one is a clash."""
        return tuple(self._offers.get((kind, name), ()))

    def clashes(self) -> Iterator[tuple[Entry, ...]]:
        """The names that more than one plugin offers."""
        return (tuple(entries) for _, entries in sorted(self._offers.items()) if len(entries) > 1)

    def key_clashes(self) -> Iterator[tuple[str, tuple[tuple[PluginInfo, ConfigSection], ...]]]:
        """The config keys that more than one section owns, and these sections."""
        owners: dict[str, list[tuple[PluginInfo, ConfigSection]]] = defaultdict(list)
        for plugin, section in self.sections:
            for setting in fields(section.settings):
                owners[setting.name].append((plugin, section))
        return ((key, tuple(sections)) for key, sections in sorted(owners.items()) if len(sections) > 1)

    def names(self, kind: str) -> tuple[str, ...]:
        """The names that components of a kind are offered under, sorted."""
        return tuple(sorted({name for offered, name in self._offers if offered == kind}))

    def find(self, kind: str, use: str) -> Entry:
        """The offer that `use` names: "Lion", or "neox-lion:Lion" where two plugins offer a Lion.

        Raises UnknownComponentError when nothing has that name, with the nearest one; PluginError when more than one
        plugin has it, with the qualified names. `Catalog.find` also knows the plugins that could not be loaded.
        """
        plugin, _, name = use.rpartition(":")
        offers = [entry for entry in self.offers(kind, name) if not plugin or entry.plugin.id == normalise(plugin)]
        if len(offers) == 1:
            return offers[0]
        if offers:
            owners = " and ".join(f"{entry.plugin.id} {entry.plugin.version}" for entry in offers)
            ways = " or ".join(f"`{entry.qualified}`" for entry in offers)
            key = offers[0].definition.key.replace("_", "-")
            hint = f"write {key}: {ways}" if key else f"write {ways}"
            raise PluginError(f"{kind} {name!r} is offered by {owners}", hint=hint)
        known = self.names(kind)
        near = get_close_matches(name, known, 1) or [other for other in known if other.lower() == name.lower()]
        said = f"no {kind} {use!r}; installed: {', '.join(known) or 'none'}"
        hint = f"did you mean {near[0]!r}?" if near else "`neox plugins list` shows what is there and what failed"
        raise UnknownComponentError(said, hint=hint)
