"""Rules on keys that are not in use any more: what each means today."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class OlderSpelling:
    """A key that is not in use any more, dotted: it `Means`, has `Moved`, is `Gone`, or is `Assumed`."""

    key: str


@frozen
class Means(OlderSpelling):
    """A key each of whose values is a setting of today, (dotted key, value); None: it says nothing.

    also: other values of that setting which the key agrees with.
    block: whether the key is in use as the name of a block, and older as a switch.
    """

    cases: Mapping[bool | str, tuple[str, Any] | None]
    also: tuple[str, ...] = ()
    block: bool = False


@frozen
class Moved(OlderSpelling):
    """A key that has another name or lives in a block now. `item`: place in a list, whose other items are `others`."""

    to: str
    item: int | None = None
    others: tuple[float, ...] = ()


@frozen
class Gone(OlderSpelling):
    """A key without successor. A `harmless` value asks for what happens anyway; any other is an error.

    harmless: None where every value is.
    """

    why: str
    harmless: tuple[Any, ...] | None = ()
    hint: str = "remove it"


@frozen
class Assumed(OlderSpelling):
    """The `value` that is taken for a key of today that is missing beside the key `beside`, by the program `by`."""

    value: Any
    beside: str
    by: str
