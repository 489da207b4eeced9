"""What the installed dialects make of a config: keys of other programs, translated or explained."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded
from neox_core.hooks.registry import Registry

if TYPE_CHECKING:
    from neox_core.contracts.dialect import Dialect


def dialects(registry: Registry) -> "Iterator[Dialect]":
    """The dialects, in the order of their names. Raises PluginError for one that cannot be imported."""
    return (entry.load() for entry in registry.entries("dialect"))


def modernise(loaded: Loaded, registry: Registry) -> Loaded:
    """The same config in the keys of neox, translated before anything else reads it."""
    for dialect in dialects(registry):
        loaded = dialect.translate(loaded)
    return loaded


def older_keys(registry: Registry) -> dict[str, str]:
    """Top-level key -> its owner for messages, of those that are translated wherever a config has them."""
    entries = registry.entries("dialect")
    return {key: f"{entry.plugin.id} (old spelling)" for entry in entries for key in entry.load().older}


def explained(path: str, value: Any, registry: Registry) -> Iterable[Problem] | None:
    """The explanation of a key by the first dialect that knows it; None if none does."""
    said = (dialect.explain(path, value) for dialect in dialects(registry))
    return next((each for each in said if each is not None), None)


def explained_name(kind: str, name: str, registry: Registry) -> tuple[str, str] | None:
    """Message and hint on a component's name, by the first dialect that knows it; None where none does."""
    said = (dialect.explain_name(kind, name) for dialect in dialects(registry))
    return next((each for each in said if each is not None), None)


def names_in(path: str, registry: Registry) -> tuple[str, ...]:
    """The keys of a block that dialects know."""
    return tuple(name for dialect in dialects(registry) for name in dialect.names_in(path))
