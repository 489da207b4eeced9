"""One value to the type of its field: strictly, and with every problem collected.

Strict: no "false" to True, no 3.9 to 3, no 1 to True. Only conversions without loss are made: an int for a float,
5e8 for an int. `null` means unset: None for an optional value, the default for any other.
"""

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from neox_core.config.problem import Problem
from neox_core.config.schema.setting import SettingInfo
from neox_core.hooks.component import METADATA

UNKNOWN_KEY, REQUIRED = "unknown key", "is required"
"""How the messages about an unknown key and about a missing one start: code tells these problems apart by them."""
_INT_LIMIT = 2**63


class InvalidError(Exception):
    """A value does not have the type of its field; one message, and possibly a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@frozen
class Field:
    """A field of a settings class with its type resolved."""

    name: str
    type: Any
    attribute: Any
    info: SettingInfo

    @property
    def required(self) -> bool:
        """Whether a config has to have the key."""
        return self.attribute.default is attrs.NOTHING

    @property
    def default(self) -> Any:
        """The value of a config without the key; made for each where attrs has a factory."""
        factory = self.attribute.default
        return factory.factory() if isinstance(factory, attrs.Factory) else factory  # type: ignore[arg-type] # typed as a function

    @property
    def keys(self) -> tuple[str, ...]:
        """The spellings that a config may use, hyphens as underscores."""
        return tuple(dict.fromkeys(key.replace("-", "_") for key in (self.name, *self.info.aliases)))


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The settings of an attrs class, in the order of their definition."""
    hints = get_type_hints(cls) if any(isinstance(each.type, str) for each in attrs.fields(cls)) else {}
    return tuple(
        Field(each.name, hints.get(each.name, each.type or Any), each, each.metadata.get(METADATA) or SettingInfo(""))
        for each in attrs.fields(cls)
        if each.init
    )


@cache
def by_key(cls: type | None) -> Mapping[str, Field]:
    """The settings of an attrs class by every spelling that a config may use; none of None."""
    return {} if cls is None else {key: field for field in fields_of(cls) for key in field.keys}


def block_of(kind: Any) -> type | None:
    """The attrs class of a field that is a block."""
    return next((each for each in (kind, *get_args(kind)) if isinstance(each, type) and attrs.has(each)), None)


def read_fields(cls: type, values: Mapping[str, Any], path: str, report: Callable[[Problem], None]) -> dict[str, Any]:
    """The fields of `cls` from `values`, with defaults; a wrong field is reported and left out.

    Keys of `values` that `cls` does not have are reported too, and an older name of one that it has as a note.
    """
    known = by_key(cls)
    for key in values:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            report(Problem(UNKNOWN_KEY, join(path, key), hint))
    found: dict[str, Any] = {}
    for field in fields_of(cls):
        written = [key for key in field.keys if key in values]
        if not written:
            if field.required:
                report(Problem(REQUIRED, join(path, field.name), field.info.help))
            else:
                found[field.name] = field.default
            continue
        if len(written) > 1 and not same(values[written[0]], values[written[1]]):
            report(
                Problem(
                    f"differs from its other spelling {written[1]!r}",
                    join(path, written[0]),
                    "keep one of the two; a --set replaces a key of a file in the spelling of the file",
                )
            )
            continue
        for key in written:
            if key != field.name:
                report(Problem(f"is another name of {field.name}", join(path, key), severity="note"))
        for value in _field_value(field, values[written[0]], join(path, written[0]), report):
            found[field.name] = value
    return found


def make(cls: type, found: Mapping[str, Any], path: str, report: Callable[[Problem], None]) -> Any:
    """The instance, or None when the class itself refuses the combination of values, which is reported."""
    if any(field.name not in found for field in fields_of(cls)):
        return None
    arguments = {field.attribute.alias or field.name: found[field.name] for field in fields_of(cls)}
    try:
        return cls(**arguments)
    except (ValueError, TypeError) as error:
        report(Problem(_said(error, ""), path and join(path, "")))
        return None


def join(path: str, key: str) -> str:
    """The dotted path of a key in a block; an empty part is left out."""
    return ".".join(part for part in (path, str(key)) if part)


def same(one: Any, other: Any) -> bool:
    """Equality that distinguishes True from 1, at every depth."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _field_value(field: Field, raw: Any, path: str, report: Callable[[Problem], None]) -> Iterator[Any]:
    """The checked value, or NOTHING when a problem was reported."""
    union = get_args(field.type) if _is_union(field.type) else ()
    if raw is None and field.type not in (Any, None, type(None)) and type(None) not in union:
        if field.required:
            report(Problem(f"{REQUIRED} and may not be null", path, field.info.help))
        else:
            yield field.default
        return
    problems: list[Problem] = []
    try:
        value = convert(raw, field.type, path, problems.append)
    except InvalidError as error:
        problems.append(Problem(error.message, path, error.hint))
    if all(each.severity != "error" for each in problems) and field.attribute.validator is not None:
        try:
            field.attribute.validator(None, field.attribute, value)
        except (ValueError, TypeError) as error:
            problems.append(Problem(_said(error, field.name), path))
    for problem in problems:
        report(problem)
    if all(problem.severity != "error" for problem in problems):
        yield value


def _said(error: Exception, name: str) -> str:
    """The message of a validator, without the field's name that attrs puts in front."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return text.removeprefix(f"'{name}' ").removeprefix(f"{name} ") if name else text


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def convert(raw: Any, kind: Any, path: str, report: Callable[[Problem], None]) -> Any:
    """`raw` as `kind`. Raises InvalidError for this value; problems inside a block or a list are reported."""
    origin = get_origin(kind)
    if kind is Any:
        return raw
    if _is_union(kind):
        return _union(raw, get_args(kind), path, report)
    if origin is Literal:
        return _literal(raw, get_args(kind))
    if kind in _PLAIN:
        return _PLAIN[kind](raw)
    if attrs.has(kind):
        if not isinstance(raw, Mapping):
            raise InvalidError(f"must be a block of keys, not {shown(raw)}")
        return make(kind, read_fields(kind, raw, path, report), path, report)
    if origin in (tuple, list, Sequence) or kind in (tuple, list):
        return _sequence(raw, origin or kind, get_args(kind), path, report)
    if origin in (dict, Mapping) or kind is dict:
        if not isinstance(raw, Mapping):
            raise InvalidError(f"must be a block of keys, not {shown(raw)}")
        inner = (get_args(kind) or (str, Any))[1]
        return {key: convert(value, inner, join(path, key), report) for key, value in raw.items()}
    raise TypeError(f"{path}: a setting cannot have the type {kind!r}")


def _union(raw: Any, members: tuple[Any, ...], path: str, report: Callable[[Problem], None]) -> Any:
    if raw is None and type(None) in members:
        return None
    rest = [member for member in members if member is not type(None)]
    if isinstance(raw, Mapping):
        rest = [member for member in rest if attrs.has(member) or get_origin(member) is dict] or rest
    refused: list[InvalidError] = []
    for member in rest:
        try:
            return convert(raw, member, path, report)
        except InvalidError as error:
            refused.append(error)
    message = "; or ".join(dict.fromkeys(error.message for error in refused))
    raise InvalidError(message, refused[0].hint)


def _literal(raw: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if same(raw, choice):
            return choice
    near = get_close_matches(str(raw), [str(choice) for choice in choices], 1)
    listed = ", ".join(shown(choice) for choice in choices)
    one = "one of " if len(choices) > 1 else ""
    message = f"must be {one}{listed}, not {shown(raw)}"
    raise InvalidError(message, f"did you mean {near[0]!r}?" if near and isinstance(raw, str) else "")


def _sequence(raw: Any, kind: Any, inner: tuple[Any, ...], path: str, report: Callable[[Problem], None]) -> Any:
    if not isinstance(raw, list | tuple):
        raise InvalidError(f"must be a list, not {shown(raw)}", "write [a, b]")
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        if len(raw) != len(inner):
            raise InvalidError(f"must have {len(inner)} values, not {len(raw)}")
        types_of = list(inner)
    else:
        types_of = [inner[0] if inner else Any] * len(raw)
    items = []
    for index, (value, item_type) in enumerate(zip(raw, types_of, strict=True)):
        try:
            items.append(convert(value, item_type, f"{path}[{index}]", report))
        except InvalidError as error:
            report(Problem(error.message, f"{path}[{index}]", error.hint))
    return list(items) if kind is list else tuple(items)


def shown(value: Any) -> str:
    """A value as a config would write it, cut to a readable length."""
    if isinstance(value, Mapping):
        return "a block of keys"
    if isinstance(value, list | tuple):
        return "a list"
    text = {"True": "true", "False": "false", "None": "null"}.get(repr(value), repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _bool(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    spelled = isinstance(raw, str) and raw.strip().lower() in {"true", "false", "yes", "no", "on", "off"}
    raise InvalidError(f"must be true or false, not {shown(raw)}", "without quotes, true or false" if spelled else "")


def _int(raw: Any) -> int:
    if isinstance(raw, float) and raw.is_integer():  # 5e8 is a float to YAML
        raw = int(raw)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise InvalidError(f"must be a whole number, not {shown(raw)}", _unquote(raw))
    if abs(raw) >= _INT_LIMIT:
        raise InvalidError(f"must be a whole number of at most 63 bits, not {shown(raw)}")
    return raw


def _float(raw: Any) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        try:
            value = float(raw)
        except OverflowError:
            value = math.inf
        if math.isfinite(value):
            return value
        raise InvalidError(f"must be a finite number, not {shown(raw)}")
    raise InvalidError(f"must be a number, not {shown(raw)}", _unquote(raw))


def _unquote(raw: Any) -> str:
    if not isinstance(raw, str):
        return ""
    try:
        float(raw)
    except ValueError:
        return ""
    return "write the number without quotes"


def _str(raw: Any) -> str:
    if not isinstance(raw, str):
        said = f"must be text, not {shown(raw)}"
        raise InvalidError(said, "write it in quotes" if isinstance(raw, int | float) else "")
    if "\0" in raw:
        raise InvalidError("must not hold a NUL character")
    if not raw.isascii() and any("\ud800" <= letter <= "\udfff" for letter in raw):
        raise InvalidError("must not hold an incomplete character (a lone surrogate)", "write the whole character")
    return raw


_PLAIN: dict[Any, Callable[[Any], Any]] = {bool: _bool, int: _int, float: _float, str: _str}
_PLAIN[Path] = lambda raw: Path(_str(raw))
