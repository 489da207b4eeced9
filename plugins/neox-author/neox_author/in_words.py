"""Types, ranges and defaults in words: for the reference, for `explain`, for errors."""

import types
from collections.abc import Callable
from inspect import getdoc
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from neox_core.config.schema.checks import Limits, Only
from neox_core.config.schema.convert import Field, shown

PLAIN = {bool: "true or false", int: "whole number", float: "number", str: "text", type(None): "null"}
_LEDGER = {"bool": "true or false", "int": "whole number", "float": "number", "str": "text", "mapping": "block"}


def type_in_words(kind: Any) -> str:
    """The type of a field, in words."""
    if kind in PLAIN:
        return PLAIN[kind]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return " or ".join(dict.fromkeys(map(type_in_words, members)))
    if get_origin(kind) in (tuple, list):
        inner = [member for member in get_args(kind) if member is not Ellipsis]
        return f"list of {type_in_words(inner[0])}"
    return "block"


def known_type_in_words(name: str, choices: tuple[str, ...]) -> str:
    """The type of a key of a later version, in words."""
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if name.startswith("list["):
        return f"list of {known_type_in_words(name[5:-1], ())}"
    return _LEDGER.get(name, name)


def default_in_words(value: Any) -> str:
    """A default as a config would write it; "" for no default, and for a block."""
    if value is None or attrs.has(type(value)) or value == {}:
        return ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return value if isinstance(value, str) else shown(value)


def default_of(field: Field) -> str:
    """The default of a field in words, or that it is required."""
    return "required" if field.required else default_in_words(field.default)


def allowed_in_words(check: Callable[..., Any] | None) -> str:
    """What a validator accepts, beyond the type; "" when this is not known."""
    if check is None:
        return ""
    if isinstance(check, Limits):
        return check.words
    if isinstance(check, Only):
        return "only " + " or ".join(map(shown, check.values)) + " in this version"
    parts = parts_of(check)
    if parts:
        return " and ".join(filter(None, map(allowed_in_words, parts)))
    compare = getattr(check, "compare_op", None)
    if compare in ("<", "<=", ">=", ">"):
        return f"{compare} {getattr(check, 'bound', '')}"
    if hasattr(check, "options"):
        return "one of " + ", ".join(map(shown, check.options))
    doc = (getdoc(check) or "").partition("\n")[0].partition(";")[0].rstrip(".")
    return doc[:1].lower() + doc[1:] if isinstance(check, types.FunctionType) else ""


def parts_of(check: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The validators that a validator of attrs combines."""
    inner = [getattr(check, name, None) for name in ("validator", "member_validator")]
    return (*getattr(check, "_validators", ()), *(each for each in inner if each is not None))
