"""YAML 1.2 to a tree of nodes.

Nothing in a file is ever constructed beyond plain values: no tag but YAML's own scalars, no alias that multiplies.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from neox_core.config.problem import Problem
from neox_core.config.read.formats import MAX_DEPTH, MAX_NODES, Node, UnreadableError, plain, read_float

_YAML = "tag:yaml.org,2002:"


class _TooManyError(Exception):
    pass


class _SmallComposer(Composer):
    """Stops where a text is too deep or long for a config, not at the end of the stack or of patience."""

    depth = count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.count += 1
        if self.depth > MAX_DEPTH:
            raise RecursionError
        if self.count > MAX_NODES:
            raise _TooManyError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


@lru_cache(64)
def parse_yaml(text: str, name: str, *, any_value: bool = False) -> Node:
    """YAML 1.2, one document. Raises UnreadableError for broken syntax, and for anything but keys at the top level."""
    older = re.search(r"^%YAML[ \t]+1\.[01]\b", text, re.MULTILINE)
    if older:
        where = f"{name}:{text.count(chr(10), 0, older.start()) + 1}"
        raise UnreadableError("is YAML 1.1, where `yes` and 010 are other values", where, hint="remove this line")
    reader = YamlReader(name)
    node = reader.read(_composed(text, name), ())
    if not node.is_block and not any_value:
        kind = "a list" if isinstance(node.value, list) else "a single value"
        raise UnreadableError(f"must hold keys with values, not {kind}", node.where, hint="write `key: value` lines")
    return Node(node.where, node.value, node.items, node.is_block, tuple(reader.problems))


def _composed(text: str, name: str) -> Any:
    """The root of ruamel's nodes."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _SmallComposer
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
    except _TooManyError as error:
        raise UnreadableError("holds too many values", name) from error
    if root is None:
        raise UnreadableError("holds no keys", name)
    return root


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
                return read_float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            what = "truth value" if kind == "bool" else "number"
            hint = "it is too close to 0 for a float" if kind == "float" else ""
            self.problems.append(Problem(f"cannot read the {what} {text[:40]!r}", where=where, hint=hint))
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
