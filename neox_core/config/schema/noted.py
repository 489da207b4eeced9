"""Settings as a reader sees them: each field that is asked for is noted in a ledger."""

from functools import cache
from typing import Any, TypeVar

import attrs

T = TypeVar("T")


def noted(settings: T, path: str, ledger: set[str]) -> T:
    """A view of the settings, which stay as they are.

    It is of a subclass with a property for each field and nothing else, so equality, `attrs.evolve`, `attrs.asdict` and
    cattrs take it for the class itself. For the host only: what a rank reads in its loop are plain settings.

    path: of the block, "" for a section; the dotted path of each field that is asked for, blocks' too, is noted.
    """
    cls: Any = type(settings)
    view: T = object.__new__(_view_of(cls))
    object.__setattr__(view, "_noted", (settings, path, ledger))
    return view


@cache
def _view_of(cls: type) -> Any:
    fields: dict[str, Any] = {each.name: _field(each.name) for each in attrs.fields(cls)}
    return type(cls.__name__, (cls,), {"__slots__": ("_noted",), "__class__": property(lambda self: cls), **fields})


def _field(name: str) -> Any:
    def read(view: Any) -> Any:
        settings, path, ledger = view._noted  # noqa: SLF001 its own
        value, here = getattr(settings, name), f"{path}.{name}" if path else name
        ledger.add(here)
        return noted(value, here, ledger) if attrs.has(type(value)) else value

    return property(read)
