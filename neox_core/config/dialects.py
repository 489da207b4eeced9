"""What the installed dialects make of a config: keys of other programs, translated or explained."""

from collections.abc import Iterable
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded
from neox_core.errors import PluginError, in_words
from neox_core.hooks.blame import cause_of
from neox_core.hooks.install import require_modules
from neox_core.hooks.registry import Entry, Registry


def modernise(loaded: Loaded, registry: Registry) -> Loaded:
    """The same config in the keys of neox, translated before anything else reads it, by dialects in order of names."""
    for entry in registry.entries("dialect"):
        loaded = _ask(entry, Loaded, "translate", loaded)
    return loaded


def older_keys(registry: Registry) -> dict[str, str]:
    """Top-level key -> its owner for messages, of those that are translated wherever a config has them."""
    entries = registry.entries("dialect")
    return {key: f"{entry.plugin.id} (old spelling)" for entry in entries for key in _ask(entry, Iterable, "older")}


def explained(path: str, value: Any, registry: Registry) -> Iterable[Problem] | None:
    """The explanation of a key by the first dialect that knows it; None if none does."""
    said = (_ask(each, Iterable | None, "explain", path, value) for each in registry.entries("dialect"))
    return next((each for each in said if each is not None), None)


def explained_name(kind: str, name: str, registry: Registry) -> tuple[str, str] | None:
    """Message and hint on a component's name, by the first dialect that knows it; None where none does."""
    said = (_ask(each, tuple | None, "explain_name", kind, name) for each in registry.entries("dialect"))
    return next((each for each in said if each is not None), None)


def names_in(path: str, registry: Registry) -> tuple[str, ...]:
    """The keys of a block that dialects know."""
    return tuple(name for each in registry.entries("dialect") for name in _ask(each, Iterable, "names_in", path))


def _ask(entry: Entry, of: Any, part: str, *given: Any) -> Any:
    """A part of a dialect, called with what is given. Raises PluginError where it fails or is not `of` that type."""
    try:
        require_modules(entry)
        said = getattr(entry.load(), part)
        said = said(*given) if given else said
        if not isinstance(said, of):
            raise TypeError(f"{part} is {said!r}")
    except Exception as error:  # the code of a plugin may raise anything
        cause = f"dialect {entry.qualified} {entry.plugin.version}: {cause_of(error, entry.component.target)}"
        told = in_words(error) or PluginError(cause, hint=f"tell the author of {entry.plugin.id}")
        if not isinstance(told, PluginError):
            raise
        hint = f"{told.hint}; NEOX_PLUGINS_DISABLE={entry.plugin.id} switches it off"
        raise PluginError(told.message, hint=hint) from error
    return said
