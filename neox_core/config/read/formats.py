"""A config file as a tree of nodes, each with its place; TOML and JSON to such a tree."""

import json
import re
from collections.abc import Mapping
from typing import Any

import tomli
from attrs import frozen

from neox_core.config.problem import Problem

MAX_NODES = 20_000
MAX_DEPTH = 40
_TOO_MUCH = "is nested too deeply, or holds a number that is too long or too close to 0"


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


def read_float(text: str) -> float:
    """A float. Raises ValueError for a number other than 0 that a float rounds to 0."""
    value = float(text)
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise ValueError(f"{text} is too close to 0")
    return value


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
        values = tomli.loads(text.replace("\r\n", "\n"), parse_float=read_float)
    except tomli.TOMLDecodeError as error:
        what = re.sub(r" \(at .*\)$", "", str(error)).lower()
        raise UnreadableError(f"is not valid TOML: {what}", _position(error, name)) from error
    except (RecursionError, ValueError) as error:
        raise UnreadableError(_TOO_MUCH, name) from error
    _measure(values, name)
    return _node(
        values, _Lines(text, name, r"^(?P<lead>\s*(?:\[+\s*)?(?:[\w-]+\s*\.\s*)*)[\"']?{key}[\"']?\s*(?:=|\]|\.)"), name
    )


def parse_json(text: str, name: str) -> Node:
    """Raises UnreadableError for broken syntax and for a top level that is not an object."""
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
        values = json.loads(text, object_pairs_hook=block, parse_float=read_float)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"is not valid JSON: {error.msg}", f"{name}:{error.lineno}:{error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise UnreadableError(_TOO_MUCH, name) from error
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
