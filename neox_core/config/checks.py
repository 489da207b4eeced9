"""Validators that settings share. Each raises ValueError with what the value must be; the caller says where it is."""

from collections.abc import Callable, Sequence
from typing import Any

from neox_core.config.convert import shown

Check = Callable[[Any, Any, Any], None]


def above(limit: float) -> Check:
    """Greater than `limit`; None passes."""

    def check(instance: Any, field: Any, value: Any) -> None:
        if value is not None and not value > limit:
            raise ValueError(f"must be greater than {limit}, not {shown(value)}")

    return check


def at_least(limit: float) -> Check:
    """`limit` or more; None passes."""

    def check(instance: Any, field: Any, value: Any) -> None:
        if value is not None and not value >= limit:
            raise ValueError(f"must be {limit} or more, not {shown(value)}")

    return check


def between(low: float, high: float) -> Check:
    """From `low` to `high`, both included; None passes."""

    def check(instance: Any, field: Any, value: Any) -> None:
        if value is not None and not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}, not {shown(value)}")

    return check


def probability(instance: Any, field: Any, value: Any) -> None:
    """At least 0 and below 1."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"must be at least 0 and below 1, not {shown(value)}")


def only(*values: Any) -> Check:
    """What this version can do of a key that later ones do more with."""

    def check(instance: Any, field: Any, value: Any) -> None:
        if value not in values or isinstance(value, bool) != isinstance(values[0], bool):
            listed = " or ".join(shown(each) for each in values)
            raise ValueError(f"{shown(value)} is not available in this version yet, only {listed}")

    return check


def distinct(instance: Any, field: Any, value: Sequence[Any]) -> None:
    """Nothing twice."""
    twice = [each for index, each in enumerate(value) if each in value[:index]]
    if twice:
        raise ValueError(f"names {shown(twice[0])} twice")


def not_empty(instance: Any, field: Any, value: Sequence[Any] | None) -> None:
    """None, or something in it."""
    if value is not None and len(value) == 0:
        raise ValueError("must not be empty")
