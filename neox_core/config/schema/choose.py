"""The components that a config chooses, and their settings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from neox_core.config.dialects import explained, explained_name
from neox_core.config.problem import MisfitError, Problem
from neox_core.config.read.load import Loaded
from neox_core.config.schema.convert import REQUIRED, block_of, by_key, join, make, read_fields, shown
from neox_core.config.schema.owners import Owners, block_name, named, spellings, two_owners
from neox_core.config.schema.sections_read import Keys
from neox_core.config.schema.unknown import explain_unknown, missing_package
from neox_core.errors import ConfigError, NeoxError, PluginError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import cause_of, load_path
from neox_core.hooks.install import package_of, package_of_key
from neox_core.hooks.kinds import Kind
from neox_core.hooks.registry import Entry, UnknownComponentError

if TYPE_CHECKING:
    from neox_core.contracts.architecture import ArchitecturePlanner, Named


@frozen
class Chosen:
    """A component that the config names, with its settings; None when it has none to set."""

    entry: Entry
    settings: Any
    path: str

    def told(self, gives: type, *about: Any) -> Any:
        """What the planner returns: one of `gives`, or None. Raises its MisfitError, or PluginError for a fault."""
        entry, path = self.entry, self.entry.require_planner()
        try:
            said = load_path(path)(*about)
            if said is not None and not isinstance(said, gives):
                raise TypeError(f"it gives {shown(said)} in place of {gives.__name__}")
        except (NeoxError, MisfitError):
            raise
        except (Exception, SystemExit) as error:  # the code of a plugin may raise anything
            message = f"the planner of {entry.kind} {entry.qualified} {entry.plugin.version} failed: "
            raise PluginError(message + cause_of(error, path), hint=f"tell the author of {entry.plugin.id}") from error
        return said


class Reading(Keys):
    """The keys, and the components that they choose."""

    def __init__(self, loaded: Loaded, catalog: Catalog, owners: Owners) -> None:
        super().__init__(loaded, catalog, owners)
        self.chosen: dict[str, tuple[Chosen, ...]] = {}
        self.twice: dict[str, str] = {}
        self.absent: set[str] = set()  # packages of components that are asked for and not there

    def choose(self) -> None:
        """Choose the components of every kind, and read their settings."""
        kinds = sorted(self.catalog.registry.kinds.values(), key=lambda kind: not kind.names_others)
        named = {kind: self._choose(kind) for kind in kinds if kind.used and (kind.key or kind.many)}
        if self.loaded.values.keys() - self.read - self.owners.section_of.keys():  # a key of what is not chosen yet
            for kind, chosen in named.items():
                if chosen is not None and kind.many and not kind.settings_at:
                    self._switch_on(kind, chosen)
        for kind in kinds:
            if kind.comes_with:
                self._choose_along(kind)
        self.in_use |= {each.entry.plugin.id for chosen in self.chosen.values() for each in chosen}
        definers = self.catalog.registry.definers
        self.in_use |= {definers[kind].id for kind, chosen in self.chosen.items() if chosen and kind in definers}

    def _choose_along(self, kind: Kind) -> None:
        """The component that comes with one of another kind, where the config names none."""
        name = next((each.entry.component.scheduler for each in self.chosen.get(kind.comes_with, ())), None)
        if name is not None and self.chosen.get(kind.name) == ():
            if (chosen := self._chosen(kind, name)) is None:
                del self.chosen[kind.name]
            else:
                self.chosen[kind.name] = (chosen,)

    def _choose(self, kind: Kind) -> Sequence[Chosen] | None:
        """The sound ones of those that keys name; None where the key that chooses is itself wrong, and reported."""
        try:
            named = self._named(kind)
        except LookupError:
            return None
        names = named if kind.many else (named,) if named is not None else ()
        chosen = [self._chosen(kind, name, names) for name in names]
        sound = tuple(each for each in chosen if each is not None)
        if len(sound) == len(chosen):
            self.chosen[kind.name] = sound
        return sound

    def _switch_on(self, kind: Kind, named: Sequence[Chosen]) -> None:
        added = list(self._switched_on(kind, {each.entry.component.name for each in named}))
        chosen = (*named, *(each for each in added if each is not None))
        if not kind.key and not kind.named_by and len(chosen) > 1:
            self._one_alone(kind, chosen)
        if None in added:
            self.chosen.pop(kind.name, None)
        elif kind.name in self.chosen:
            self.chosen[kind.name] = chosen

    def _one_alone(self, kind: Kind, chosen: Sequence[Chosen]) -> None:
        names = " and ".join(each.entry.component.name for each in chosen)
        for each in chosen[1:]:
            keys = (*by_key(each.entry.component.settings), block_name(each.entry))
            key = next(key for key in keys if key in self.loaded.values)
            self.report(Problem(f"a run has one {kind.name}, and {names} are switched on", key, "switch one off"))

    def _named(self, kind: Kind) -> Any:
        if (others := self._named_by_others(kind)) is not None:
            for each in others:
                if not each.used:
                    self._chosen(kind, each.name)
            return [each.name for each in others if each.used]
        head, *rest = kind.key.split(".")
        if head not in self.fields:
            if head in self.expected:
                raise LookupError(head)
            return () if kind.many else None  # no key chooses one, or its key belongs to what is not chosen
        value = self.fields[head]
        self.read.add(head)
        for part in rest:
            value = getattr(value, part, None)
        for entry in self._offered(kind.name, value) if isinstance(value, str) else ():
            if not entry.component.chooses:
                break
            try:
                return entry.load()(self.fields, self.catalog.registry)
            except ConfigError as error:
                self.report(Problem(error.message, kind.key, error.hint))
                raise LookupError(value) from error
        if kind.any_case and not self.catalog.registry.offers(kind.name, value.rpartition(":")[2]):
            return value.lower()  # the documents write PDSH, OpenMPI, MVAPICH
        return value

    def _named_by_others(self, kind: Kind) -> "Sequence[Named] | None":
        """What other keys name: addresses, or keys of the chosen architecture, which raise LookupError if wrong."""
        if kind.named_by:
            found: Sequence[Named] = load_path(kind.named_by)(self.fields)
            return found
        for each in (one for chosen in self.chosen.values() for one in chosen if one.entry.definition.names_others):
            try:
                planner: ArchitecturePlanner = load_path(each.entry.require_planner())
                return planner.components(kind.name, self.fields, self.catalog.registry)
            except MisfitError as error:
                self.report(Problem(error.message, error.key, error.hint))
                raise LookupError(error.key) from error
            except PluginError as error:
                key = each.entry.definition.key
                self.report(Problem(error.message, key, error.hint, exit_code=error.exit_code))
                raise LookupError(kind.name) from error
        return None

    def _chosen(self, kind: Kind, name: str, names: Sequence[str] = ()) -> Chosen | None:
        try:
            entry = self.catalog.find(kind.name, name)
        except PluginError as error:
            self._not_found(kind, name, error)
            return None
        self.read_sections_of(entry)
        if kind.settings_at:
            values = self._params(kind)
            if kind.many:
                values = self._own(entry, names, values)
            chosen = self._settings(entry, values, self._as_written(kind.settings_at))
        else:
            chosen = self._flat_settings(entry)
        return None if chosen is None else evolve(chosen, path=kind.settings_at)

    def _flat_settings(self, entry: Entry) -> Chosen | None:
        """Settings that are keys of the config, or in the block of the component's name."""
        cls, block, name = entry.component.settings, block_name(entry), named(entry)
        if cls is None:
            return Chosen(entry, None, "")
        written = block in self.loaded.values and block in self.owners.blocks
        inner = self.take([block], entry)[block] if written else None
        if inner is not None and not isinstance(inner, Mapping):
            self.report(Problem(f"must be a block of the settings of {name}, not {shown(inner)}", block))
            return None
        inside = set(inner or {})
        known = by_key(cls)
        fields_inside = {known[key].name for key in inside if key in known}
        flat = self.take([key for key in known if known[key].name not in fields_inside], entry)
        self.twice |= {key: block for key in known if known[key].name in fields_inside}

        def report(problem: Problem) -> None:
            head = problem.key.partition(".")[0].partition("[")[0]
            in_block = head in inside or (inner and head not in flat)
            self.report(_asked_by(entry, evolve(problem, key=join(block, problem.key)) if in_block else problem))

        values = {**self.without_secrets(cls, flat, ""), **self.without_secrets(cls, dict(inner or {}), block)}
        found = read_fields(cls, values, "", report)
        self.keep(entry.plugin.id, found)
        settings = make(cls, found, "", report)
        return None if settings is None else Chosen(entry, settings, "")

    def _switched_on(self, kind: Kind, named: set[str]) -> Iterator[Chosen | None]:
        """Components that are not named and that `enabled` of their own settings chooses; None: one is wrong."""
        entries = {each.component.name: each.component.settings for each in self.catalog.registry.entries(kind.name)}
        for name, cls in entries.items():
            if name in named or cls is None or not hasattr(cls, "enabled"):
                continue
            blocks = (name.replace("-", "_"),) if name.replace("-", "_") in self.owners.blocks else ()
            written = [key for key in (*blocks, *by_key(cls)) if key in self.loaded.values]
            if not written:
                continue
            self.in_use |= {each.plugin.id for each in self._offered(kind.name, name)}
            chosen = self._chosen(kind, name)
            if chosen is None or chosen.settings.enabled:
                yield chosen
                continue
            for key in written:
                switch = f"{key}.enabled"
                inner = key in blocks or block_of(by_key(cls)[key].type)
                if self.loaded.values[key] and inner and switch not in self.loaded.places:
                    self.report(Problem("does nothing", key, f"set {switch}: true", severity="warning"))

    def _as_written(self, path: str) -> str:
        """A path by the name that the config has of its first part."""
        head, dot, rest = path.partition(".")
        if head not in self.loaded.values:
            others = dict(spellings(each.settings for _, each in self.owners.sections)).get(head, ())
            head = next((each for each in others if each in self.loaded.values), head)
        return f"{head}{dot}{rest}"

    def _own(self, entry: Entry, names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
        """Those settings of a block shared by several components that do not belong only to the others."""
        offered = (each for name in names for each in self._offered(entry.kind, name))
        others = {key for each in offered for key in by_key(each.component.settings)}
        mine = by_key(entry.component.settings)
        return {key: value for key, value in values.items() if key in mine or key not in others}

    def _offered(self, kind: str, name: str) -> tuple[Entry, ...]:
        """What a name, qualified or not, stands for; nothing where that is an error, which is reported by itself."""
        try:
            return (self.catalog.find(kind, name),)
        except PluginError:
            return ()

    def _params(self, kind: Kind) -> dict[str, Any]:
        head, *rest = kind.settings_at.split(".")
        value = self.fields.get(head)
        for part in rest:
            value = getattr(value, part, {})
        params = dict(value or {})
        if kind.key.startswith(f"{kind.settings_at}."):
            params.pop(kind.key.removeprefix(f"{kind.settings_at}."), None)  # the name is not a setting
        return params

    def _settings(self, entry: Entry, values: Mapping[str, Any], path: str) -> Chosen | None:
        cls = entry.component.settings
        if cls is None:
            for key in values:
                self.report(Problem(f"{entry.component.name} has no settings", join(path, key), "remove it"))
            return None if values else Chosen(entry, None, path)
        found = read_fields(
            cls, self.without_secrets(cls, values, path), path, lambda each: self.report(_asked_by(entry, each))
        )
        settings = make(cls, found, path, self.report)
        return None if settings is None else Chosen(entry, settings, path)

    def _not_found(self, kind: Kind, name: str, error: PluginError) -> None:
        hint = error.hint
        if isinstance(error, UnknownComponentError):
            if (said := explained_name(kind.name, name, self.catalog.registry)) is not None:
                self._explained(kind, name, *said)
                return
            self.absent |= {package_of(kind.name, name)} - {""}
            hint = missing_package(kind, name, self.catalog) or hint
        message = "; ".join(error.message.split("\n  "))
        self.report(Problem(message, self._chooser(kind, name), hint, exit_code=error.exit_code))

    def _chooser(self, kind: Kind, name: str) -> str:
        """The key that has named a component."""
        others = self._named_by_others(kind) or ()
        return next((each.key for each in others if each.name == name), kind.key)

    def _explained(self, kind: Kind, name: str, message: str, hint: str) -> None:
        """Report what a dialect knows about a name, and about its settings that no installed component has."""
        registry = self.catalog.registry
        hint = hint or f"installed: {', '.join(registry.names(kind.name)) or 'none'}"
        self.place(Problem(message, self._chooser(kind, name), hint))
        params = self._params(kind) if kind.settings_at else {}
        others = {key for entry in registry.entries(kind.name) for key in by_key(entry.component.settings)}
        for key in (each for each in params if each not in others):
            for problem in explained(join(kind.settings_at, key), params[key], registry) or ():
                self.place(problem)

    def settle_keys(self) -> None:
        """A key that is written, and that several have read: whatever else is wrong with it, that comes first."""
        for key, takers in self.takers.items():
            if len(takers) < 2:
                continue
            spelled = self.loaded.spelled(key)
            self.problems = [each for each in self.problems if each.key.partition(".")[0].partition("[")[0] != spelled]
            ways = [f"{block}: {{{key}: ...}}" for block in takers.values() if block in self.owners.blocks]
            way_out = "uninstall one of the two, or switch it off with NEOX_PLUGINS_DISABLE"
            hint = f"write {' or '.join(ways)}" if ways else way_out
            self.report(Problem(two_owners(list(takers)), key, hint, exit_code=PluginError.exit_code))

    def _flat(self) -> Iterator[Entry]:
        """The chosen components whose settings are keys of the config, or in the block of their name."""
        entries = (each.entry for chosen in self.chosen.values() for each in chosen)
        yield from (each for each in entries if each.component.settings and not each.definition.settings_at)

    def spellings_of_chosen(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """As `_spellings`, of components whose settings may be in the block of their name."""
        for entry in self._flat():
            block = block_name(entry) if block_name(entry) not in self.owners.section_of else ""
            for path, paths in spellings([entry.component.settings] if entry.component.settings else ()):
                inside = tuple(f"{block}.{each}" for each in paths) if block else ()
                yield path, (*inside, *paths)
                if block:
                    yield f"{block}.{path}", (*inside, *paths)

    def read_rest(self) -> None:
        """Report the keys that nothing has read."""
        for key in self.loaded.values:
            if key in self.read or package_of_key(key) in self.absent:  # the report names the package
                continue
            if key in self.twice:
                self.report(Problem(f"is written in {self.twice[key]} too", key, "keep one of the two"))
            else:
                spelled, value = self.loaded.spelled(key), self.loaded.values[key]
                for problem in explain_unknown(key, value, spelled, self.owners, self.catalog, self.fields):
                    self.place(problem)


def _asked_by(entry: Entry, problem: Problem) -> Problem:
    """For a missing key, the problem also names the component that needs it."""
    if problem.message != REQUIRED:
        return problem
    return evolve(problem, message=f"{REQUIRED} by {entry.kind} {entry.component.name}")
