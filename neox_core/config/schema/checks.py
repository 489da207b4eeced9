"""Validators that settings share. Each raises ValueError with what the value must be; the caller adds the position.

Validators of a range or a choice have it as attributes, from which the reference and the JSON Schema are made.
"""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from neox_core.config.schema.convert import shown


@frozen
class Limits:
    """A number within bounds, those that are not None; the value None passes."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    @property
    def words(self) -> str:
        """What a number must be."""
        if self.at_least is not None and self.at_most is not None:
            return f"from {self.at_least} to {self.at_most}"
        lower = f"greater than {self.above}" if self.above is not None else ""
        if self.at_least is not None:
            lower = f"at least {self.at_least}" if self.below is not None else f"{self.at_least} or more"
        upper = f"below {self.below}" if self.below is not None else ""
        if self.at_most is not None:
            upper = f"{self.at_most} or less"
        return " and ".join(part for part in (lower, upper) if part)

    def __call__(self, instance: Any, field: Any, value: Any) -> None:
        if value is None:
            return
        holds = (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )
        if not holds:
            raise ValueError(f"must be {self.words}, not {shown(value)}")


@frozen
class Only:
    """The values of a key that this version supports, where others are refused.

    why: the reason, where no version will support more.
    """

    values: tuple[Any, ...]
    why: str = ""

    def __call__(self, instance: Any, field: Any, value: Any) -> None:
        if value not in self.values or isinstance(value, bool) != isinstance(self.values[0], bool):
            listed = " or ".join(shown(each) for each in self.values)
            status = self.why or "not available in this version yet"
            raise ValueError(f"{shown(value)} is {status}, only {listed}")


def at_rest(check: Any) -> bool:
    """Whether a key accepts only its default."""
    return isinstance(check, Only) and len(check.values) == 1


def above(limit: float) -> Limits:
    """Greater than `limit`; None passes."""
    return Limits(above=limit)


def at_least(limit: float) -> Limits:
    """`limit` or more; None passes."""
    return Limits(at_least=limit)


def between(low: float, high: float) -> Limits:
    """From `low` to `high`, both included; None passes."""
    return Limits(at_least=low, at_most=high)


probability = Limits(at_least=0, below=1)


def only(*values: Any, why: str = "") -> Only:
    """One of `values`; any other is refused as for a later version, or for the reason `why`."""
    return Only(values, why)


def distinct(instance: Any, field: Any, value: Sequence[Any]) -> None:
    """Nothing twice."""
    if twice := [each for index, each in enumerate(value) if each in value[:index]]:
        raise ValueError(f"names {shown(twice[0])} twice")


def not_empty(instance: Any, field: Any, value: Sequence[Any] | None) -> None:
    """Not empty; None passes."""
    if value is not None and len(value) == 0:
        raise ValueError("must not be empty")
