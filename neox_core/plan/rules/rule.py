"""The marker of rules, and helpers that several rules share."""

from collections.abc import Callable, Iterator
from inspect import isfunction
from types import ModuleType
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape

Rule = Callable[[Config, ClusterShape], Iterator[Problem]]


def rule(*keys: str) -> Callable[[Rule], Rule]:
    """Mark a rule with the dotted keys (written with `_`) that it is about. Its docstring is the rule in one line."""

    def mark(each: Rule) -> Rule:
        each.__dict__["keys"] = keys
        return each

    return mark


def rules_in(module: ModuleType) -> Iterator[Rule]:
    """The rules of a module, in the order of its text."""
    return (each for each in vars(module).values() if isfunction(each) and "keys" in vars(each))


def keys_of(each: Rule) -> tuple[str, ...]:
    """The dotted keys that a rule is about; `neox config explain` shows the rule with each of them."""
    return tuple(each.__dict__["keys"])


def number_is(value: Any, other: float) -> bool:
    """Whether a raw config value is this number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and float(value) == float(other)
