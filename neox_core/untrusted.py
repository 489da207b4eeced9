"""Untrusted JSON: read within limits, structured strictly, refused with one reason."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from neox_core.errors import NeoxError
from neox_core.files import read_bytes
from neox_core.terminal import cut, one_line

if TYPE_CHECKING:
    from cattrs import Converter

MOST_BYTES = 64 << 20
"""Largest size in bytes of a file of settings or state, which has some kilobytes."""
DEEPEST = 64
"""Largest depth of lists and objects; neox writes at most a dozen levels."""
LONGEST = 300
"""Largest length of a reason in characters; a value that it quotes may have any length."""

T = TypeVar("T")


def read_file(path: Path, error: type[NeoxError], most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file, at most `most`. Raises `error`, also for a pipe or a device."""
    try:
        return read_bytes(path, most)
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror or reason}") from reason


def parse_object(data: bytes, path: Path, error: type[NeoxError]) -> dict[str, Any]:
    """The JSON object in `data`, which was read from `path`.

    Raises `error` for anything else, more than DEEPEST levels, and half a surrogate pair, which cannot be written.
    """
    try:
        raw = json.loads(data.decode("utf-8"))
        if b"\\ud" in data.lower():
            json.dumps(raw, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise error(f"{path}: cannot be read: it has half a surrogate pair") from None
    except (ValueError, RecursionError) as reason:
        raise error(f"{path}: cannot be read: {short(str(reason))}") from reason
    if not isinstance(raw, dict):
        raise error(f"{path}: not a JSON object")
    level: list[Any] = [raw]
    for _ in range(DEEPEST):
        children = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for some in children for each in some if isinstance(each, dict | list)]
    if level:
        raise error(f"{path}: cannot be read: it has more than {DEEPEST} levels")
    return raw


def read_object(path: Path, error: type[NeoxError], most: int = MOST_BYTES) -> dict[str, Any]:
    """A JSON object, as `parse_object`, of a file, as `read_file`."""
    return parse_object(read_file(path, error, most), path, error)


@cache
def strict_converter() -> Converter:
    """A converter that does not convert: it refuses a number for a text, 3.0 for 3, and unknown keys.

    All share it, since it compiles a function for each class that it meets: who changes it takes a copy.
    """
    from cattrs.preconf.json import make_converter  # 15 ms that a look at a config need not pay

    converter = make_converter(forbid_extra_keys=True)
    converter.register_structure_hook(bool, lambda value, _: _only(value, bool))
    converter.register_structure_hook(int, lambda value, _: _only(value, int))
    converter.register_structure_hook(str, lambda value, _: _only(value, str))
    converter.register_structure_hook(float, lambda value, _: float(_only(value, int, float)))
    return converter


def structured(converter: Converter, raw: Any, cls: type[T], what: str, error: type[NeoxError]) -> T:
    """`raw` as a `cls`. Raises `error`, which starts with `what`, with the first reason why it does not fit."""
    try:
        return converter.structure(raw, cls)
    except Exception as reason:  # a value of the wrong type can fail in any conversion
        raise error(f"{what}: {why(reason)}") from reason


def why(reason: Exception) -> str:
    """The first reason of a conversion that failed, and its position."""
    from cattrs.errors import BaseValidationError
    from cattrs.v import format_exception, transform_error

    def said(fault: BaseException, kind: type | None) -> str:
        """The text of a check of ours, else cattrs's."""
        told = fault.args[0] if type(fault) is ValueError and kind is None and fault.args else None
        return told if isinstance(told, str) else format_exception(fault, kind)

    if isinstance(reason, BaseValidationError):
        return short(transform_error(reason, format_exception=said)[0])
    return short(f"{type(reason).__name__}: {reason}")


def short(value: Any) -> str:
    """A value in one line of printable characters, cut to about LONGEST."""
    return cut(one_line(cut(str(value), LONGEST)), LONGEST)


def replaces(value: Any, current: Any) -> bool:
    """Whether a stored number, text or None may replace `current`: nan and other types may not."""
    if isinstance(value, float) and math.isnan(value):
        return False
    if isinstance(current, float) and type(value) is int:
        return True
    if type(current) is int and isinstance(value, float) and value.is_integer():
        return True  # a loss scale starts as 2**16 and becomes 131072.0
    plain = type(value) in (bool, int, float, str, type(None))
    return plain and (current is None or type(value) is type(current))


def _only(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"not a value of this type: {short(repr(value))}")
    return value
