"""Rewrites config files of any age as one file in today's spelling, which keeps their comments and order.

`modernise` and `structure` tell what became of each key, by the position where it was written: this module
knows no key by name. It writes, and rewrites, the lines that start with `# neox: `.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve, frozen

from neox_core.config.dialects import modernise
from neox_core.config.problem import Problem
from neox_core.config.read.formats import flow
from neox_core.config.read.load import Loaded, load, value_at
from neox_core.config.report import ProblemsError, errors, in_order, spell
from neox_core.config.schema.convert import fields_of, same
from neox_core.config.schema.owners import Owners, find_owners
from neox_core.config.schema.structure import Config, structure
from neox_core.hooks.catalog import Catalog
from neox_gpt_neox.defaults import unset
from neox_gpt_neox.idle import NOT_HERE
from neox_gpt_neox.older import Gone
from neox_gpt_neox.recipe import mark_of
from neox_gpt_neox.source import Entry, Source, read_source, write
from neox_gpt_neox.translate import SAYS_NOTHING, rules_of

MARK = "# neox: "
YAML_ENDINGS = (".yml", ".yaml")


@frozen
class Migrated:
    """The text of the new file, and notes on keys: those that changed, and those that this version does not have."""

    text: str
    problems: tuple[Problem, ...]


def migrate(files: Sequence[Path], catalog: Catalog) -> Migrated:
    """Rewrite files as one. Raises ConfigError for files that cannot be read, and for keys that contradict each
    other.
    """
    written = load(files)
    files = written.files
    others = [file for file in files if file.suffix.lower() not in YAML_ENDINGS]
    if others:
        raise ProblemsError(
            Problem("is not YAML: only the comments of YAML files can be kept", where=str(each)) for each in others
        )
    gone = frozenset(each.key for _, each in rules_of(catalog.registry) if isinstance(each, Gone))
    today = modernise(written, catalog.registry)
    if any(not _gone(each, gone) for each in errors(today.problems)) or not written.values:
        raise ProblemsError(today.problems)
    config, found = structure(today, catalog)
    sources = [read_source(file) for file in files]
    work = _NewFile(written, today, config, found, find_owners(catalog.registry), gone)
    for file, source in zip(files, sources, strict=True):
        if file != files[0] and source.entries:
            source.entries[0].above[:0] = ["", f"# from {file.name}"]
        work.add(source)
    if mark_of(written.values):
        work.out.entries += _defaults(today)
    return Migrated(write(work.out), in_order([*today.problems, *found]))


def _defaults(today: Loaded) -> list[Entry]:
    """GPT-NeoX's values of the keys that the files leave to its defaults, where those of neox are others."""
    entries = [Entry(spell(each.key), "", text=flow(each.there)) for each in unset(today.values)]
    if entries:
        entries[0].above = ["", "# GPT-NeoX's defaults, which its files do not write"]
    return entries


class _NewFile:
    """Takes entry after entry to where it belongs in the new file."""

    def __init__(
        self,
        written: Loaded,
        today: Loaded,
        config: Config,
        found: Sequence[Problem],
        owners: Owners,
        gone: frozenset[str],
    ) -> None:
        self.written = written
        self.today = today
        self.names = dict(_names(config))
        self.underscored = frozenset(_underscored(owners))
        self.owned = frozenset(owners.keys())
        self.said = {problem.where: problem for problem in (*today.problems, *found) if problem.severity == "note"}
        self.wrong: dict[str, list[Problem]] = {}
        written_at = {(place.where, place.spelled) for place in today.places.values()}
        for problem in errors([*today.problems, *found]):
            if (
                _gone(problem, gone) or (problem.where, problem.key.partition("[")[0]) in written_at
            ):  # not what is missing
                self.wrong.setdefault(problem.where, []).append(problem)
        self.now_at: dict[str, list[str]] = {}
        for path, place in today.places.items():
            self.now_at.setdefault(place.where, []).append(path)
        self.done: set[str] = set()
        self.out = Source([], [])

    def add(self, source: Source) -> None:
        pending: list[str] = []
        for entry in source.entries:
            entry.above[:0], pending = pending, []
            pending = self._place(entry, "", self.out.entries)
        self.out.below += [*pending, *source.below]

    def _place(self, entry: Entry, block: str, into: list[Entry]) -> list[str]:
        """Put an entry where it belongs; return the comments that lost their key, for the next entry."""
        path = f"{block}.{entry.key}".lstrip(".").replace("-", "_")
        entry = evolve(entry, above=[line for line in entry.above if not line.startswith(MARK)])
        if entry.items is not None:
            return self._block(entry, path, into)
        new = [each for each in self.now_at.get(entry.where, ()) if self._name(each) not in self.done]
        if not new and entry.where in self.wrong:
            into.append(evolve(entry, above=[*entry.above, *self._words(entry, entry.key)]))
            return []
        if not new:
            return self._dropped(entry)
        for each in new:
            self._leaf(entry, path, each, into)
            entry = evolve(entry, above=[], beside="")
        return []

    def _leaf(self, entry: Entry, path: str, now: str, into: list[Entry]) -> None:
        name = self._name(now)
        self.done.add(name)
        value = value_at(self.today.values, now)
        unchanged = path in self.written.places and same(value_at(self.written.values, path), value)
        text = entry.text if unchanged else flow(value)
        head, key = name.rpartition(".")[0], self._spelled(name, entry)
        put = Entry(key, entry.where, [*entry.above, *self._words(entry, key)], entry.beside, text)
        if head == self._name(path.rpartition(".")[0]):
            into.append(put)
        else:
            self._within(head, put).append(put)

    def _block(self, entry: Entry, path: str, into: list[Entry]) -> list[str]:
        name = self._name(path)
        spelled = self._spelled(name, entry)
        block = next((each for each in into if each.key == spelled and each.items is not None), None)
        made = Entry(spelled, entry.where, [*entry.above, *self._words(entry, spelled)], entry.beside, items=[])
        target = block or made
        if block is None:
            into.append(made)
        else:
            block.flow = ""
        kept = list(target.items or ())
        pending: list[str] = [] if block is None else [*entry.above, *([entry.beside] if entry.beside else [])]
        for inner in entry.items or ():
            inner.above[:0], pending = pending, []
            pending = self._place(inner, path, target.items if target.items is not None else [])
        if not target.items and entry.items:
            into.remove(target)
            return [*target.above, *([target.beside] if target.beside else []), *pending]
        if block is None and not pending and not kept:
            target.flow = self._one_line(entry, target)
        if pending:
            self.out.below += pending
        return []

    def _one_line(self, entry: Entry, target: Entry) -> str:
        """The text of a block that was on one line, when nothing in it moved or needs words."""
        before, after = entry.items or [], target.items or []
        plain = all(not each.above and not each.beside for each in after)
        same_keys = [(each.key, each.text) for each in before] == [(each.key, each.text) for each in after]
        return entry.flow if plain and same_keys and not any(each.items for each in before) else ""

    def _dropped(self, entry: Entry) -> list[str]:
        """The comment that replaces a key which has no line any more."""
        said = self.said.get(entry.where)
        gone = said is not None and said.message.startswith((SAYS_NOTHING, NOT_HERE))
        reason = [f"# {entry.key}: {entry.text} {said.message}"] if said is not None and gone else []
        return [*entry.above, *([entry.beside] if entry.beside else []), *reason]

    def _within(self, path: str, put: Entry) -> list[Entry]:
        """The entries of a block of the new file; a new block takes over the comments of the key that it is for."""
        entries, name = self.out.entries, ""
        for part in path.split("."):
            name = f"{name}.{part}".lstrip(".")
            found = next((each for each in entries if each.key.replace("-", "_") == part), None)
            if found is None or found.items is None:
                above, put.above = put.above, []
                found = Entry(self._spelled(name), put.where, above, items=[])
                entries.append(found)
            found.flow = ""
            entries = found.items if found.items is not None else []
        return entries

    def _words(self, entry: Entry, key: str) -> list[str]:
        """What is wrong with a key, as comments above it."""
        words = []
        for problem in self.wrong.get(entry.where, ()):
            hint = f" ({problem.hint.replace(problem.key, key)})" if problem.hint else ""
            words.append(MARK + problem.message + hint)
        return words

    def _name(self, path: str) -> str:
        """The path with each part in its first name."""
        found = ""
        for part in path.split(".") if path else ():
            here = f"{found}.{part}".lstrip(".")
            found = self.names.get(here, here)
        return found

    def _spelled(self, name: str, entry: Entry | None = None) -> str:
        """A key as the new file writes it: with `_` inside blocks and where DeepSpeed named it, else with `-`."""
        if "." in name or name in self.underscored:
            return name.rpartition(".")[2]
        return entry.key if entry is not None and name not in self.owned else spell(name)


def _names(config: Config) -> Iterator[tuple[str, str]]:
    """Dotted path -> the path in first names, for each other name of a setting. In a block or not: as it is written."""
    for path, others in config.spellings.items():
        yield from ((other, path) for other in others if other != path and other.count(".") == path.count("."))
    for chosen in (each for kind in config.chosen.values() for each in kind):
        for each in fields_of(chosen.entry.component.settings) if chosen.entry.component.settings else ():
            head = f"{chosen.path}." if chosen.path else ""
            yield from ((head + other, head + each.name) for other in each.keys if other != each.name)


def _underscored(owners: Owners) -> Iterator[str]:
    components = dict.fromkeys(entry for entries in owners.components_of.values() for entry in entries)
    of_components = (section for entry in components for section in entry.component.sections)
    for section in (*(each for _, each in owners.sections), *of_components):
        yield from (each.name for each in fields_of(section.settings) if each.info.origin == "deepspeed")


def _gone(problem: Problem, gone: frozenset[str]) -> bool:
    """Whether a problem is about a value without an equivalent; its key stays, for the user to decide."""
    return problem.key.replace("-", "_") in gone
