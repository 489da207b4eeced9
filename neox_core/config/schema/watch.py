"""Settings that record which of their fields were read."""

from typing import Any, TypeVar

import attrs

T = TypeVar("T")


def watched(instance: T, path: str, read: set[str]) -> T:
    """The same settings; reading a field, or a field of a block, adds its dotted path to `read`.

    The instance is of a subclass that only adds this recording, so equality, `attrs.evolve`,
    `attrs.asdict` and cattrs see the class itself. For the host only: a rank reads plain settings.
    """
    cls: Any = type(instance)
    names = frozenset(each.name for each in attrs.fields(cls))

    def noted(self: Any, name: str) -> Any:
        if name == "__class__":
            return cls
        value = object.__getattribute__(self, name)
        if name in names:
            here = f"{path}.{name}" if path else name
            read.add(here)
            return watched(value, here, read) if attrs.has(type(value)) else value
        return value

    view: T = object.__new__(type(cls.__name__, (cls,), {"__slots__": (), "__getattribute__": noted}))
    for name in names:
        object.__setattr__(view, name, getattr(instance, name))
    return view
