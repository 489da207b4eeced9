"""The three file formats to one tree of nodes, each with its place.

Nothing in a file is ever constructed beyond plain values: no tag but YAML's own scalars, no alias that multiplies.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tomli
from attrs import frozen

from neox_core.config.problem import Problem

MAX_NODES = 20_000
MAX_DEPTH = 40

_YAML = "tag:yaml.org,2002:"


@frozen
class Node:
    """A value at a place. A block has items in order, spelled as written; anything else has a plain value."""

    where: str
    value: Any = None
    items: tuple[tuple[str, "Node"], ...] = ()
    is_block: bool = False
    problems: tuple[Problem, ...] = ()


class UnreadableError(Exception):
    """A file, or a `--set`, of which nothing can be used."""

    def __init__(self, message: str, where: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(message, hint=hint, where=where)


def parse_yaml(text: str, name: str, *, any_value: bool = False) -> Node:
    """YAML 1.2, one document. Raises UnreadableError for broken syntax and for a top level that is no block of keys."""
    from ruamel.yaml import YAML  # 15 ms that TOML and JSON need not pay
    from ruamel.yaml.composer import Composer
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    class SmallComposer(Composer):  # type: ignore[misc]  # ruamel is untyped to mypy here
        """Stops where a text is too deep or long for a config, not at the end of the stack or of patience."""

        depth = count = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            self.count += 1
            if self.depth > MAX_DEPTH:
                raise RecursionError
            if self.count > MAX_NODES:
                raise UnreadableError("holds too many values", name)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    older = re.search(r"^%YAML[ \t]+1\.[01]\b", text, re.MULTILINE)
    if older:
        where = f"{name}:{text.count(chr(10), 0, older.start()) + 1}"
        raise UnreadableError("is YAML 1.1, where `yes` and 010 are other values", where, hint="remove this line")
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = SmallComposer
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise UnreadableError(f"is not valid YAML: {said}", where) from error
    except (YAMLError, ValueError) as error:
        raise UnreadableError(f"is not valid YAML: {' '.join(str(error).split())}", name) from error
    except RecursionError as error:
        raise UnreadableError("is nested too deeply", name) from error
    if root is None:
        raise UnreadableError("holds no keys", name)
    reader = YamlReader(name)
    node = reader.read(root, ())
    if not node.is_block and not any_value:
        kind = "a list" if isinstance(node.value, list) else "a single value"
        raise UnreadableError(f"must hold keys with values, not {kind}", node.where, hint="write `key: value` lines")
    return Node(node.where, node.value, node.items, node.is_block, tuple(reader.problems))


class YamlReader:
    """Composed YAML nodes to ours."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.problems: list[Problem] = []

    def read(self, node: Any, parents: tuple[int, ...]) -> Node:
        where = self._where(node)
        self.count += 1
        if self.count > MAX_NODES:
            raise UnreadableError("expands to too many values", where, hint="an alias (*name) is repeated too often")
        if id(node) in parents:
            raise UnreadableError("an alias refers to the block around it", where)
        if len(parents) > MAX_DEPTH:
            raise UnreadableError("is nested too deeply", where)
        inside = (*parents, id(node))
        if node.tag == _YAML + "map" and isinstance(node.value, list):
            return Node(where, items=tuple(self._items(node, inside)), is_block=True)
        if node.tag == _YAML + "seq" and isinstance(node.value, list):
            return Node(where, value=[plain(self.read(item, inside)) for item in node.value])
        return Node(where, value=self._scalar(node, where))

    def _items(self, node: Any, parents: tuple[int, ...]) -> Iterable[tuple[str, Node]]:
        seen: dict[str, str] = {}
        for key, value in node.value:
            where = self._where(key)
            if not isinstance(key.value, str) or key.tag == _YAML + "merge":
                what = "merge keys (<<) are not read" if isinstance(key.value, str) else "a key must be plain text"
                self.problems.append(
                    Problem(what, str(key.value)[:40] if isinstance(key.value, str) else "", where=where)
                )
                continue
            if key.value in seen:
                self.problems.append(Problem(f"is written twice; first at {seen[key.value]}", key.value, where=where))
                continue
            seen[key.value] = where
            child = self.read(value, parents)
            yield key.value, Node(where, child.value, child.items, child.is_block)

    def _scalar(self, node: Any, where: str) -> Any:
        text, kind = node.value, node.tag.removeprefix(_YAML)
        if kind == "null":
            return None
        try:
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return yaml_int(text)
            if kind == "float":
                return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            what = "truth value" if kind == "bool" else "number"
            self.problems.append(Problem(f"cannot read the {what} {text[:40]!r}", where=where))
            return None
        if kind not in ("str", "timestamp", "value", "merge") or not isinstance(text, str):
            self.problems.append(
                Problem(f"the tag {node.tag!r} is not read", where=where, hint="write plain values only")
            )
            return None
        return text

    def _where(self, node: Any) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def yaml_int(text: str) -> int:
    """An integer of YAML 1.2: decimal, 0x and 0o, `_` between digits. Raises ValueError."""
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2].lower(), 10)
    return sign * int(digits[2:] if base != 10 else digits, base)


def plain(node: Node) -> Any:
    """The node as dicts, lists and scalars."""
    if node.is_block:
        return {key.replace("-", "_"): plain(child) for key, child in node.items}
    return node.value


def flow(value: Any) -> str:
    """A plain value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return repr(value).replace("inf", ".inf").replace("nan", ".nan")
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def parse_toml(text: str, name: str) -> Node:
    """Raises UnreadableError for broken syntax."""
    try:
        values = tomli.loads(text.replace("\r\n", "\n"))
    except tomli.TOMLDecodeError as error:
        raise UnreadableError(f"is not valid TOML: {_without_position(error)}", _position(error, name)) from error
    except (RecursionError, ValueError) as error:
        raise UnreadableError("is nested too deeply or holds a number that is too long", name) from error
    _measure(values, name)
    return _node(
        values, _Lines(text, name, r"^(?P<lead>\s*(?:\[+\s*)?(?:[\w-]+\s*\.\s*)*)[\"']?{key}[\"']?\s*(?:=|\]|\.)"), name
    )


def parse_json(text: str, name: str) -> Node:
    """Raises UnreadableError for broken syntax and for a top level that is no object."""
    problems: list[Problem] = []
    lines = _Lines(text, name, r"(?P<lead>)\"{key}\"\s*:")

    def block(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                problems.append(Problem("is written twice", key, where=lines.last(key)))
            found.setdefault(key, value)
        return found

    try:
        values = json.loads(text, object_pairs_hook=block)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"is not valid JSON: {error.msg}", f"{name}:{error.lineno}:{error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise UnreadableError("is nested too deeply or holds a number that is too long", name) from error
    if not isinstance(values, dict):
        raise UnreadableError("must hold an object", name, hint='write {"key": value}')
    _measure(values, name)
    node = _node(values, lines, name)
    return Node(node.where, None, node.items, True, tuple(problems))


class _Lines:
    """Where a key stands in a text whose parser keeps no positions: its line when only one line fits, else the file."""

    _WORD = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([\w-]+)")
    _LONG = 2_000  # a line that is not searched once more for each of its keys

    def __init__(self, text: str, name: str, pattern: str) -> None:
        self.lines = text.splitlines()
        self.name = name
        self.pattern = pattern
        self.with_word: dict[str, list[int]] = {}
        for number, line in enumerate(self.lines, 1):
            for word in dict.fromkeys("".join(found) for found in self._WORD.findall(line)):
                self.with_word.setdefault(word, []).append(number)

    def of(self, key: str) -> str:
        found = self._find(key)
        return f"{self.name}:{found[0]}" if len(found) == 1 else self.name

    def last(self, key: str) -> str:
        found = self._find(key)
        return f"{self.name}:{found[-1]}" if found else self.name

    def _find(self, key: str) -> list[str]:
        """The lines that fit, each with the column where only one of its parts does."""
        regex = re.compile(self.pattern.replace("{key}", re.escape(key)))
        found = []
        for number in self.with_word.get(key, ()):
            line = self.lines[number - 1]
            columns = [match.end("lead") + 1 for match in regex.finditer(line)] if len(line) <= self._LONG else [0, 0]
            if columns:
                found.append(f"{number}:{columns[0]}" if len(columns) == 1 else str(number))
        return found


def _measure(values: Any, name: str) -> None:
    """Raises UnreadableError for what is too deep or long for a config, before anything walks it."""
    count, level = 0, [values]
    for _ in range(MAX_DEPTH):
        inner = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        count += len(inner)
        level = [each for each in inner if isinstance(each, dict | list)]
        if count > MAX_NODES:
            raise UnreadableError("holds too many values", name)
        if not level:
            return
    raise UnreadableError("is nested too deeply", name)


def _node(values: Mapping[str, Any], lines: _Lines, where: str) -> Node:
    items = []
    for key, value in values.items():
        place = lines.of(key)
        if isinstance(value, dict):
            items.append((key, _node(value, lines, place)))
        else:
            items.append((key, Node(place, value=_only_plain(value, place))))
    return Node(where, items=tuple(items), is_block=True)


def _only_plain(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_only_plain(item, where) for item in value]
    if isinstance(value, dict):
        return {key.replace("-", "_"): _only_plain(item, where) for key, item in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _position(error: tomli.TOMLDecodeError, name: str) -> str:
    found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
    return f"{name}:{found[1]}:{found[2]}" if found else name


def _without_position(error: tomli.TOMLDecodeError) -> str:
    return re.sub(r" \(at .*\)$", "", str(error)).lower()
