"""What was written to `Config`: every key has one owner, every value the type of its field.

Keys belong to the core's sections, to plugins' sections, and to the components that the config chooses. All problems of
all sections are collected; nothing that was written is left unread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from neox_core.config.convert import REQUIRED, UNKNOWN_KEY, block_of, by_key, fields_of, join, make, read_fields, shown
from neox_core.config.infer import INFER, data_backend
from neox_core.config.layers import layouts_used, mode_of
from neox_core.config.load import Loaded, value_at
from neox_core.config.owners import Owners, find_owners
from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, errors, spell
from neox_core.config.unknown import (
    NOT_YET,
    explain_inner,
    explain_unknown,
    foreign_name,
    missing_package,
    settings_of_unavailable,
    unavailable,
)
from neox_core.config.watch import watched
from neox_core.errors import PluginError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.kinds import KIND_BY_NAME, KINDS, Kind
from neox_core.hooks.registry import Entry, UnknownComponentError

T = TypeVar("T")


class SectionInvalidError(LookupError):
    """A section that has problems of its own was asked for; they are in the report already."""


@frozen
class Chosen:
    """A component that the config names, with its settings; None when it has none to set."""

    entry: Entry
    settings: Any
    path: str


@frozen
class Config:
    """What was written, with defaults filled in.

    read: the dotted keys that somebody has asked for, so that a key which nobody reads can be refused.
    """

    sections: Mapping[type, Any]
    fields: Mapping[str, Any]
    loaded: Loaded
    chosen: Mapping[str, tuple[Chosen, ...]] = field(factory=dict)
    spellings: Mapping[str, tuple[str, ...]] = field(factory=dict)
    read: set[str] = field(factory=set, eq=False, repr=False)

    def section(self, cls: type[T]) -> T:
        """The settings of one section, by their class. Raises SectionInvalidError when it has problems."""
        try:
            return watched(self.sections[cls], "", self.read)  # type: ignore[no-any-return]
        except KeyError:
            raise SectionInvalidError(cls.__name__) from None

    def value(self, key: str) -> Any:
        """A value by its dotted key, `-` or `_`. Raises KeyError for a key that no section has."""
        head, *rest = key.replace("-", "_").split(".")
        value, path = self.fields[head], head
        self.read.add(head)
        for part in rest:
            value, path = value[part] if isinstance(value, Mapping) else getattr(value, part), f"{path}.{part}"
            self.read.add(path)
        return value

    def is_set(self, key: str) -> bool:
        """Whether the config writes the key, in any spelling."""
        return self._path(key) in self.loaded.places

    def origin(self, key: str) -> str:
        """The place "file:line:column", or "--set", or "default"."""
        place = self.loaded.places.get(self._path(key))
        return place.where if place else "default"

    def _path(self, key: str) -> str:
        """The dotted path of a key, in the spelling that the config has of it."""
        path = key.replace("-", "_")
        return next((each for each in self.spellings.get(path, ()) if each in self.loaded.places), path)

    def components(self, kind: str) -> tuple[Chosen, ...]:
        """The chosen components of one kind, each with `settings`. Raises SectionInvalidError when it has problems."""
        self.read.update({KIND_BY_NAME[kind].key, KIND_BY_NAME[kind].settings_at} if kind in KIND_BY_NAME else ())
        try:
            return self.chosen[kind]
        except KeyError:
            raise SectionInvalidError(kind) from None

    def spelled(self, key: str) -> str:
        """A key as the config writes it, or would."""
        path = self._path(key)
        return self.loaded.spelled(path) or spell(path)

    def problem(self, message: str, key: str, hint: str = "", severity: str = "error") -> Problem:
        """A problem at the place of a key, spelled as the user wrote it."""
        return Problem(message, self.spelled(key), hint, self.loaded.where(self._path(key)), severity)


def structure_settings(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """An instance of an attrs class of settings. Raises ConfigError listing every problem."""
    problems: list[Problem] = []
    made = make(cls, read_fields(cls, _normal(values), path, problems.append), path, problems.append)
    if errors(problems):
        raise ProblemsError(problems)
    return made  # type: ignore[no-any-return]


def _normal(value: Any) -> Any:
    """Keys with `_` for `-`, at every depth."""
    if isinstance(value, Mapping):
        return {str(key).replace("-", "_"): _normal(inner) for key, inner in value.items()}
    return value


def structure(loaded: Loaded, catalog: Catalog) -> tuple[Config, tuple[Problem, ...], int]:
    """(config, problems, how many of them are plugins' faults). Raises PluginError when a key has two owners."""
    work = _Reading(loaded, catalog, find_owners(catalog.registry))
    work.read_sections()
    work.choose()
    work.read_rest()
    config = Config(work.sections, work.fields, loaded, work.chosen, dict(_spellings(work.owners.sections)))
    return config, tuple(work.problems), work.plugin_faults


def _spellings(classes: Iterable[type]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Dotted path -> all paths that say the same."""
    for each in (one for cls in classes for one in fields_of(cls)):
        yield each.name, each.keys
        block = block_of(each.type)
        for inner, paths in _spellings([block] if block else ()):
            yield f"{each.name}.{inner}", tuple(f"{outer}.{path}" for outer in each.keys for path in paths)


def _asked_by(entry: Entry, problem: Problem) -> Problem:
    """Of a key that is missing, also who needs it: it stands beside those of others."""
    if problem.message != REQUIRED:
        return problem
    return evolve(problem, message=f"{REQUIRED} by {entry.kind} {entry.component.name}")


class _Reading:
    """What has been made of the config so far: sections, chosen components, and the problems of both."""

    def __init__(self, loaded: Loaded, catalog: Catalog, owners: Owners) -> None:
        self.loaded = loaded
        self.catalog = catalog
        self.owners = owners
        self.problems: list[Problem] = []
        self.sections: dict[type, Any] = {}
        self.fields: dict[str, Any] = {}
        self.chosen: dict[str, tuple[Chosen, ...]] = {}
        self.read: set[str] = set()
        self.plugin_faults = 0

    def report(self, problem: Problem) -> None:
        """Take a problem whose key is a normalised path, and give it its place and the user's spelling."""
        inner = problem.message == UNKNOWN_KEY and "." in problem.key
        for each in explain_inner(problem, value_at(self.loaded.values, problem.key)) if inner else (problem,):
            self.place(each)

    def place(self, problem: Problem) -> None:
        """Take a problem as it is, but for its place and the spelling of its key."""
        key = self.loaded.spelled(problem.key) or spell(problem.key)
        self.problems.append(evolve(problem, key=key, where=self.loaded.where(problem.key)))

    def _without_secrets(self, cls: type, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The values, secrets refused: a config is copied and shared, and so are messages that show a value."""
        kept: dict[str, Any] = {}
        for key, value in values.items():
            field = by_key(cls).get(key)
            block = block_of(field.type) if field is not None else None
            if field is not None and field.info.secret and value is not None:
                hint = "remove it, and use the environment variable of the service"
                self.report(Problem("is a secret, which has no place in a config", join(path, key), hint))
            elif block is not None and isinstance(value, Mapping):
                kept[key] = self._without_secrets(block, value, join(path, key))
            else:
                kept[key] = value
        return kept

    def read_sections(self) -> None:
        for cls in self.owners.sections:
            mine = self._take(by_key(cls))
            found = read_fields(cls, self._without_secrets(cls, mine, ""), "", self.report)
            self.fields.update(found)
            instance = make(cls, found, "", self.report)
            if instance is not None:
                self.sections[cls] = instance

    def _take(self, keys: Iterable[str]) -> dict[str, Any]:
        mine = {key: self.loaded.values[key] for key in keys if key in self.loaded.values}
        self.read.update(mine)
        return mine

    def choose(self) -> None:
        for kind in KINDS:
            if kind.used and (kind.key or kind.many):
                self._choose(kind)
        self._choose_scheduler()

    def _choose_scheduler(self) -> None:
        """The one that comes with the optimizer, where the config names none."""
        name = next((each.entry.component.scheduler for each in self.chosen.get("optimizer", ())), None)
        if name is not None and self.chosen.get("scheduler") == ():
            chosen = self._chosen(KIND_BY_NAME["scheduler"], name)
            if chosen is None:
                del self.chosen["scheduler"]
            else:
                self.chosen["scheduler"] = (chosen,)

    def _choose(self, kind: Kind) -> None:
        try:
            named = self._named(kind)
        except LookupError:
            return  # the key that chooses is itself wrong, and reported
        names = named if kind.many else (named,) if named is not None else ()
        chosen = [self._chosen(kind, name, names) for name in names]
        if kind.many:
            chosen += self._switched_on(kind, {each.entry.component.name for each in chosen if each is not None})
        sound = [each for each in chosen if each is not None]
        if not kind.key and len(chosen) > 1:
            self._one_alone(kind, sound)
        if len(sound) == len(chosen):
            self.chosen[kind.name] = tuple(sound)

    def _one_alone(self, kind: Kind, chosen: Sequence[Chosen]) -> None:
        names = " and ".join(each.entry.component.name for each in chosen)
        for each in chosen[1:]:
            key = next(key for key in by_key(each.entry.component.settings) if key in self.loaded.values)
            self.report(Problem(f"a run has one {kind.name}, and {names} are switched on", key, "switch one off"))

    def _named(self, kind: Kind) -> Any:
        if kind.name == "sparse layout":
            return self._layouts()
        if not kind.key:
            return ()
        head, *rest = kind.key.split(".")
        value = self.fields[head]
        self.read.add(head)
        for part in rest:
            value = getattr(value, part, None)
        if kind.name == "data backend" and value == INFER:
            several = self.fields.get("train_data_paths")
            return data_backend(several[0] if several else self.fields.get("data_path"))
        if kind.name == "launcher" and not self.catalog.registry.offers(kind.name, value.rpartition(":")[2]):
            return value.lower()  # the documents write PDSH, OpenMPI, MVAPICH
        return value

    def _layouts(self) -> list[str]:
        """The layouts that some layer has. Raises LookupError where what names them is wrong."""
        sparsity, block, pattern = (self.fields[key] for key in ("sparsity", "sparse_attention", "attention_config"))
        mode = mode_of(block)
        if not isinstance(mode, str):
            self.report(Problem(f"must be text, not {shown(mode)}", "sparse_attention.mode"))
            raise LookupError(mode)
        used = list(layouts_used(sparsity, mode, pattern))
        if block and not used:  # that it does nothing is a rule's to say; what is wrong within it is said here
            self._chosen(KIND_BY_NAME["sparse layout"], mode)
        return used

    def _chosen(self, kind: Kind, name: str, names: Sequence[str] = ()) -> Chosen | None:
        try:
            entry = self.catalog.find(kind.name, name)
        except PluginError as error:
            self._not_found(kind, name, error)
            return None
        if kind.settings_at:
            path = self._as_written(kind.settings_at)
            values = self._params(kind)
            if kind.many:
                values = self._own(entry, names, values)
        else:
            path = ""
            values = self._take(by_key(entry.component.settings))
        chosen = self._settings(entry, values, path)
        return None if chosen is None else evolve(chosen, path=kind.settings_at)

    def _switched_on(self, kind: Kind, named: set[str]) -> Iterator[Chosen | None]:
        """Components that are not named and that `enabled` of their own settings chooses; None: one is wrong."""
        entries = {each.component.name: each.component.settings for each in self.catalog.registry.entries(kind.name)}
        for name, cls in entries.items():
            if name in named or cls is None or not hasattr(cls, "enabled"):
                continue
            written = [key for key in by_key(cls) if key in self.loaded.values]
            if not written:
                continue
            chosen = self._chosen(kind, name)
            if chosen is None or chosen.settings.enabled:
                yield chosen
                continue
            for key in written:
                switch = f"{key}.enabled"
                if self.loaded.values[key] and block_of(by_key(cls)[key].type) and switch not in self.loaded.places:
                    self.report(Problem("does nothing", key, f"set {switch}: true", severity="warning"))

    def _as_written(self, path: str) -> str:
        """A path by the name that the config has of its first part."""
        head, dot, rest = path.partition(".")
        if head not in self.loaded.values:
            others = dict(_spellings(self.owners.sections)).get(head, ())
            head = next((each for each in others if each in self.loaded.values), head)
        return f"{head}{dot}{rest}"

    def _own(self, entry: Entry, names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
        """Of the settings in a block that several components share, those that are not the others' alone."""
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
            params.pop(kind.key.removeprefix(f"{kind.settings_at}."), None)  # the name is no setting
        return params

    def _settings(self, entry: Entry, values: Mapping[str, Any], path: str) -> Chosen | None:
        cls = entry.component.settings
        if cls is None:
            for key in values:
                self.report(Problem(f"{entry.component.name} has no settings", join(path, key), "remove it"))
            return None if values else Chosen(entry, None, path)
        found = read_fields(
            cls, self._without_secrets(cls, values, path), path, lambda each: self.report(_asked_by(entry, each))
        )
        if not path:
            self.fields.update(found)
        settings = make(cls, found, path, self.report)
        return None if settings is None else Chosen(entry, settings, path)

    def _not_found(self, kind: Kind, name: str, error: PluginError) -> None:
        hint = error.hint
        if isinstance(error, UnknownComponentError):
            package, foreign = unavailable(kind, name), foreign_name(kind, name)
            if package:
                self._not_yet(kind, name, package)
                return
            if foreign is not None:
                message = f"{name} is a name of GPT-NeoX that this version does not have"
                self.place(Problem(message, self._chooser(kind, name), foreign or self._installed(kind)))
                return
            hint = missing_package(kind, name, self.catalog) or hint
        self.report(Problem("; ".join(error.message.split("\n  ")), self._chooser(kind, name), hint))
        self.plugin_faults += 1

    def _chooser(self, kind: Kind, name: str) -> str:
        """The key that has named a component."""
        named = kind.name == "sparse layout" and name != mode_of(self.fields["sparse_attention"])
        return "attention_config" if named else kind.key

    def _installed(self, kind: Kind) -> str:
        return f"installed: {', '.join(self.catalog.registry.names(kind.name)) or 'none'}"

    def _not_yet(self, kind: Kind, name: str, package: str) -> None:
        registry = self.catalog.registry
        self.place(Problem(f"{name} {NOT_YET}: it will come with {package}", kind.key, self._installed(kind)))
        if kind.settings_at:
            others = {key for entry in registry.entries(kind.name) for key in by_key(entry.component.settings)}
            for problem in settings_of_unavailable(kind, self._params(kind), others):
                self.place(problem)

    def read_rest(self) -> None:
        for key in self.loaded.values:
            if key not in self.read:
                spelled, value = self.loaded.spelled(key), self.loaded.values[key]
                for problem in explain_unknown(key, value, spelled, self.owners, self.catalog, self.fields):
                    self.place(problem)
