"""Components that `neox data` names on its command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field
from cattrs.preconf.json import make_converter

from neox_core.api import Problem
from neox_core.config.read.load import load
from neox_core.config.report import ProblemsError, errors
from neox_core.config.schema.convert import REQUIRED, by_key, fields_of, read_fields
from neox_core.config.schema.owners import block_name
from neox_core.config.schema.structure import structure_settings
from neox_core.errors import UsageError
from neox_core.hooks.component import path_of
from neox_core.hooks.install import require_modules
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry

FILES = ("vocab_file", "merge_file", "eod_token")
"""The settings of tokenizers that have options of their own."""

_converter = make_converter()


def files(vocab_file: str | None, merge_file: str | None, eod_token: str | None) -> dict[str, Any]:
    """The settings of a tokenizer that were given."""
    given = zip(FILES, (vocab_file, merge_file, eod_token), strict=True)
    return {key: value for key, value in given if value is not None}


def backend_of(catalog: Catalog, data_impl: str, prefix: str, given: Given | None = None) -> ComponentRef:
    """The backend of the dataset at `prefix`; a name such as `infer` finds the one that it is of."""
    entry = catalog.find("data backend", data_impl)
    name = entry.load()({"data_path": prefix}, catalog.registry) if entry.component.chooses else data_impl
    return component(catalog, "data backend", name, given)


def named_corpus(catalog: Catalog, sources: Sequence[str], *, more: bool) -> ComponentRef | None:
    """The corpus that the sources name, None when they are files. `more`: something is said of the files too."""
    known = {entry.component.name for entry in catalog.registry.entries("corpus")}
    named = next((source for source in sources if source in known), None)
    if named is None:
        return None
    if len(sources) > 1 or more:
        raise UsageError(
            f"`{named}` cannot be combined with other sources or --json-key",
            hint=f"for a file or folder of that name write ./{named}",
        )
    return component(catalog, "corpus", named)


def given_by(sets: Sequence[str], given: Mapping[str, Any] | None = None) -> Given:
    """The settings of components from `--set`, besides those from options of their own."""
    loaded = load((), sets)
    if loaded.problems:
        raise ProblemsError(loaded.problems)
    twice = sorted(set(given or {}) & set(loaded.values))
    if twice:
        raise UsageError(f"--set {twice[0]} is given by --{twice[0].replace('_', '-')} too", hint="keep one of the two")
    return Given({**loaded.values, **(given or {})})


@define
class Given:
    """Settings of components, as a config would have them; `unread` tells those that no component has taken."""

    values: dict[str, Any]
    taken: set[str] = field(factory=set)
    asked: dict[str, str] = field(factory=dict)

    def take(self, entry: Entry) -> dict[str, Any]:
        """Those of one component: flat, or in a block of its name."""
        known = by_key(entry.component.settings)
        block = self.values.get(block_name(entry))
        inside = block if isinstance(block, Mapping) and block_name(entry) not in known else {}
        flat = {key: value for key, value in self.values.items() if key in known}
        self.taken |= {*flat, *([block_name(entry)] if inside else ())}
        self.asked[f"{entry.kind} {entry.component.name}"] = entry.component.name
        return {**flat, **inside}

    def refuse_unread(self) -> None:
        """Raises UsageError for a setting that no component has taken."""
        unread = [key for key in self.values if key not in self.taken]
        if unread:
            said = "--" + unread[0].replace("_", "-") if unread[0] in FILES else f"--set {unread[0]}"
            raise UsageError(
                f"{said}: no such setting of {' or '.join(self.asked)}",
                hint=f"`neox plugins info {next(iter(self.asked.values()))}` shows its settings",
            )


def component(
    catalog: Catalog, kind: str, use: str, given: Given | None = None, *, complete: bool = True
) -> ComponentRef:
    """The component that `use` names, with what is given of its settings. `complete`: none that it needs may lack."""
    entry = catalog.find(kind, use)
    require_modules(entry)
    if entry.component.chooses:
        raise UsageError(f"{use} stands for the {kind} of an existing dataset", hint="name the format to write")
    cls, plugin = entry.component.settings, entry.plugin
    values = given.take(entry) if given is not None else {}
    plain = _plain(entry, values, complete=complete) if cls is not None else {}
    path = path_of(cls) if cls is not None else None
    return ComponentRef(kind, entry.component.name, plugin.id, plugin.version, entry.component.target, path, plain)


def _plain(entry: Entry, values: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """The given settings by their own names, as run.json would have them. Raises ConfigError listing every problem."""
    cls: Any = entry.component.settings
    if complete:
        for name in lacking(entry, values):
            hint = by_key(cls)[name].info.help
            raise UsageError(f"{entry.kind} {entry.component.name} needs {option_of(name)}", hint=hint)
    problems: list[Problem] = []
    found = read_fields(cls, values, "", problems.append)
    wrong = [each for each in errors(problems) if not each.message.startswith(REQUIRED)]
    if wrong:
        raise ProblemsError([evolve(each, where="" if each.key in FILES else "--set") for each in wrong])
    if complete:
        structure_settings(cls, values)
    names = [each.name for each in fields_of(cls) if not values.keys().isdisjoint(each.keys)]
    return {name: _converter.unstructure(found[name]) for name in names}


def lacking(entry: Entry, values: Mapping[str, Any]) -> list[str]:
    """The settings that a component requires and that are not given."""
    cls = entry.component.settings
    fields = fields_of(cls) if cls is not None else ()
    return [each.name for each in fields if each.required and values.keys().isdisjoint(each.keys)]


def names_files(entry: Entry, values: Mapping[str, Any]) -> bool:
    """Whether the given settings say where the vocabulary of a tokenizer is, so that none is to be learnt."""
    known = by_key(entry.component.settings)
    return any(key in FILES or (key in known and known[key].info.file) for key in values)


def option_of(setting: str) -> str:
    """How a command line gives a setting of a tokenizer."""
    return f"--{setting.replace('_', '-')}" if setting in FILES else f"--set {setting}=..."
