"""Config files and `--set` to one mapping, where each value knows the place it was written.

YAML 1.2, TOML and JSON read to the same thing: keys with `_` for `-` at every depth, plain values. Files are merged; a
key with two different values is an error that names both places, unless the last file is to win. `--set` wins.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from neox_core.config.problem import COMMAND_LINE, Problem
from neox_core.config.read.formats import MAX_DEPTH, Node, UnreadableError, flow, parse_json, parse_toml
from neox_core.config.schema.convert import same
from neox_core.files import read_bytes

MAX_BYTES = 1 << 20
MAX_VALUE = 200
HALF = "holds an incomplete character (a lone surrogate)"


def _parse_yaml(text: str, name: str, *, any_value: bool = False) -> Node:
    from neox_core.config.read.yaml import parse_yaml  # 15 ms that TOML and JSON need not pay

    return parse_yaml(text, name, any_value=any_value)


_PARSERS: Mapping[str, Callable[[str, str], Node]] = {
    ".yml": _parse_yaml,
    ".yaml": _parse_yaml,
    ".toml": parse_toml,
    ".json": parse_json,
}


@frozen
class Place:
    """Where a key was written, and how it was spelled there."""

    where: str
    spelled: str


@frozen
class Loaded:
    """What the user wrote. `places` is keyed by the dotted path, with `_`. unreadable: a part could not be read."""

    values: Mapping[str, Any] = field(factory=dict)
    places: Mapping[str, Place] = field(factory=dict)
    problems: tuple[Problem, ...] = ()
    files: tuple[Path, ...] = ()
    unreadable: bool = False

    def where(self, path: str) -> str:
        """The place of a path, or of the nearest block around it; else the file when there is just one, else ""."""
        if (place := self._nearest(path)) is None:
            return str(self.files[0]) if len(self.files) == 1 else ""
        return place.where

    def spelled(self, path: str) -> str:
        """The path as the user wrote it, "" where it was not written."""
        place = self.places.get(path.partition("[")[0])
        return place.spelled + path[len(path.partition("[")[0]) :] if place else ""

    def with_values(self, problems: Sequence[Problem]) -> list[Problem]:
        """Problems with the values that their keys were given."""
        paths = {(place.where, place.spelled): path for path, place in self.places.items()}
        keys = [(problem.where, problem.key.partition("[")[0]) for problem in problems]
        texts = {key: flow(value_at(self.values, paths[key])) for key in set(keys) if key in paths}
        short = {key: text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..." for key, text in texts.items()}
        return [evolve(problem, value=short.get(key, "")) for problem, key in zip(problems, keys, strict=True)]

    def _nearest(self, path: str) -> Place | None:
        path = path.partition("[")[0]
        while path:
            if path in self.places:
                return self.places[path]
            path = path.rpartition(".")[0]
        return None


class LastWins(tuple[Path, ...]):
    """Files of which a later one replaces what an earlier one says, with a note."""


def load(files: Sequence[Path], sets: Sequence[str] = ()) -> Loaded:
    """Read and merge files, whose names need no `.yml`. Never raises for what they hold: see `Loaded.problems`."""
    merged, unreadable = _Merge(isinstance(files, LastWins)), False
    files = [_with_ending(Path(file)) for file in files]
    for file in files:
        try:
            merged.add(_read(file))
        except UnreadableError as error:
            merged.problems.append(error.problem)
            unreadable = True
    overridden: dict[str, Any] = {}
    for text in sets:
        try:
            merged.override(*_override(text), overridden)
        except UnreadableError as error:
            merged.problems.append(error.problem)
    return Loaded(merged.values, merged.places, tuple(merged.problems), tuple(files), unreadable)


def value_at(values: Any, path: str) -> Any:
    """The value of a dotted path, None where there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


class _Merge:
    """Values and places so far."""

    def __init__(self, last_wins: bool = False) -> None:
        self.last_wins = last_wins
        self.values: dict[str, Any] = {}
        self.places: dict[str, Place] = {}
        self.problems: list[Problem] = []

    def add(self, root: Node) -> None:
        self.problems.extend(root.problems)
        self._merge(root, self.values, "", "")

    def override(self, path: str, root: Node, overridden: dict[str, Any]) -> None:
        """Put the value of one `--set` in place of what is there, a block as a whole."""
        alone = _Merge()
        alone.add(root)
        self.problems.extend(alone.problems)
        value = value_at(alone.values, path)
        if path in overridden and not same(overridden[path], value):
            spelled = alone.places[path].spelled
            self.problems.append(Problem("is given twice with different values", spelled, "keep one", COMMAND_LINE))
        overridden[path] = value
        _put(self.values, path, value)
        kept = {each: place for each, place in self.places.items() if not f"{each}.".startswith(f"{path}.")}
        self.places = alone.places | kept

    def _merge(self, block: Node, into: dict[str, Any], path: str, spelled: str) -> None:
        for written, node in block.items:
            key = written.replace("-", "_")
            here = f"{path}.{key}" if path else key
            shown = f"{spelled}.{written}" if spelled else written
            if not key or "." in key:
                hint = "write blocks" if key else ""
                self.problems.append(Problem("is not a key: a key has no dots", shown or "''", hint, node.where))
            elif _has_half_a_character(written):
                self.problems.append(Problem(HALF, shown, "write the whole character", node.where))
            elif key not in into:
                if not node.is_block and _has_half_a_character(node.value):
                    self.problems.append(Problem(HALF, shown, "write the whole character", node.where))
                self.places[here] = Place(node.where, shown)
                into[key] = {}
                if node.is_block:
                    self._merge(node, into[key], here, shown)
                else:
                    into[key] = node.value
            elif node.is_block and isinstance(into[key], dict):
                self._merge(node, into[key], here, shown)
            elif node.is_block or not same(into[key], node.value):
                first = self.places[here]
                if self.last_wins and first.where.rsplit(":", 2)[0] != node.where.rsplit(":", 2)[0]:
                    self.problems.append(Problem(f"wins over {first.where}", shown, "", node.where, "note"))
                    for each in [each for each in self.places if f"{each}.".startswith(f"{here}.")]:
                        del self.places[each]
                    del into[key]
                    self._merge(Node(node.where, items=((written, node),), is_block=True), into, path, spelled)
                    continue
                other = "" if first.spelled == shown else f" as {first.spelled}"
                message = f"is given twice with different values; first at {first.where}{other}"
                self.problems.append(Problem(message, shown, "keep one of the two", node.where))


def _with_ending(file: Path) -> Path:
    """A name without a known ending is a YAML file's, where there is one."""
    named = file.with_name(f"{file.name}.yml") if file.name else file
    return named if file.suffix.lower() not in _PARSERS and named.is_file() else file


def _read(file: Path) -> Node:
    name = str(file)
    if (parse := _PARSERS.get(file.suffix.lower())) is None:
        raise UnreadableError("is not a config file", name, hint=f"known endings: {', '.join(_PARSERS)}")
    try:
        raw = read_bytes(file, MAX_BYTES)
    except OSError as error:
        said = error.strerror or str(error)
        raise UnreadableError(f"cannot be read: {said[:1].lower()}{said[1:]}", name) from error
    return parse(_text(raw, name), name)


def _text(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        where = f"{name}:{line}:{column}"
        said = f"is not UTF-8: byte 0x{raw[error.start]:02x}"
        raise UnreadableError(said, where, hint="save the file as UTF-8") from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UnreadableError("holds a NUL byte", f"{name}:{line}", hint="this is not a text file")
    if not text.strip():
        raise UnreadableError("is empty", name)
    return text


def _override(text: str) -> tuple[str, Node]:
    """`a.b=1` as the path a.b and the block {a: {b: 1}}; the value is read as YAML."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UnreadableError(f"cannot read {text!r}", COMMAND_LINE, hint="write --set key=value, or block.key=value")
    if len(parts) > MAX_DEPTH:
        raise UnreadableError("is nested too deeply", COMMAND_LINE)
    node = _parse_yaml(value, COMMAND_LINE, any_value=True) if value.strip() else Node(COMMAND_LINE, value=None)
    node = _relocate(node)
    for part in reversed(parts):
        node = Node(COMMAND_LINE, items=((part, node),), is_block=True)
    return ".".join(parts).replace("-", "_"), node


def _has_half_a_character(value: Any) -> bool:
    """Whether a text, or one in a list or block, cannot be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _relocate(node: Node) -> Node:
    """Inside `--set` lines and columns say nothing."""
    problems = tuple(evolve(problem, where=COMMAND_LINE) for problem in node.problems)
    items = tuple((key, _relocate(child)) for key, child in node.items)
    return evolve(node, where=COMMAND_LINE, items=items, problems=problems)


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *blocks, last = path.split(".")
    for block in blocks:
        inner = values.get(block)
        if not isinstance(inner, dict):
            inner = values[block] = {}
        values = inner
    values[last] = value
