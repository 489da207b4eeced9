"""Fields that the blocks of several techniques have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import Factory
from attrs import validators as v

from neox_core.api import setting


def patterns(instance: Any, field: Any, value: Sequence[str]) -> None:
    """At least one, and each is valid."""
    if not value or not all(value):
        raise ValueError("must name a layer, such as [attention.qkv], or all: ['*']")
    from neox_compression.patterns import check_pattern

    for each in value:
        check_pattern(each)


def some_patterns(instance: Any, field: Any, value: Sequence[str]) -> None:
    """Each is valid."""
    if value:
        patterns(instance, field, value)


def lists_of_patterns(instance: Any, field: Any, value: Sequence[Sequence[str]] | None) -> None:
    """Each pattern of each list is valid."""
    for each in value or ():
        patterns(instance, field, each)


def enabled(help: str) -> Any:
    """The switch of a technique, off by default."""
    return setting(False, help=help, origin="deepspeed")


def offset() -> Any:
    """The step from which a technique acts."""
    return setting(
        0,
        help="Step from which it acts; the step before is the last one without it.",
        unit="steps",
        check=v.ge(0),
        origin="deepspeed",
    )


def modules() -> Any:
    """The layers of a group."""
    return setting(
        ("*",),
        help="Layers of the group: parts of their names, or regular expressions that match a part; '*' names all "
        "linear layers of blocks.",
        check=patterns,
        origin="deepspeed",
    )


def block(default: Any, help: str) -> Any:
    """A setting that is a block."""
    return setting(default, help=help, origin="deepspeed")


def groups() -> Any:
    """The groups of layers of a technique."""
    return setting(
        Factory(dict),
        help="Block: one block a group of layers, under a name of your choice.",
        origin="deepspeed",
        each="group",
    )
