"""Nothing of a plan is left unread: what it names is built."""

from collections.abc import Iterator
from typing import Any

import attrs

from neox_core.errors import ConfigError
from neox_core.plan.runfile import ComponentRef, RunPlan

ON_THE_HOST = ("launcher",)


def require_consumed(plan: RunPlan) -> None:
    """Asked on rank 0, once all is built. Raises ConfigError naming the components whose settings nothing has read."""
    unread = [each for each in _references(plan) if not each.loaded and each.kind not in ON_THE_HOST]
    if unread:
        named = "; ".join(
            f"{each.kind} {each.name} ({', '.join(each.settings) or 'without settings'})" for each in unread
        )
        raise ConfigError(f"nothing reads a part of this configuration: {named}", hint="remove it from the config")


def _references(value: Any) -> Iterator[ComponentRef]:
    if isinstance(value, ComponentRef):
        yield value
    elif attrs.has(type(value)):
        for each in attrs.fields(type(value)):
            yield from _references(getattr(value, each.name))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _references(inner)
