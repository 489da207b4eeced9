"""What a key says of each layer, in the notation of GPT-NeoX's `attention-config`: [[[a, b], count], ...]."""

from collections.abc import Sequence
from typing import Any


def check_form(value: Sequence[Any]) -> None:
    """Raises ValueError for what is not in the notation, whatever the number of layers."""
    items(value)


def check_length(num_layers: int, value: Sequence[Any], what: str) -> None:
    """Raises ValueError when the value does not name the `what` of num_layers layers."""
    total = 0
    for names, times in items(value):
        if times is None and num_layers % len(names):
            raise ValueError(f"repeats {len(names)} names, which does not make num-layers {num_layers}")
        total += len(names) * _times(times, names, num_layers)
    if total != num_layers:
        raise ValueError(f"names the {what} of {total} layers, and num-layers is {num_layers}")


def names_of_layers(num_layers: int, value: Sequence[Any]) -> list[str]:
    """The name of each layer, of a value whose length is right."""
    return [name for names, times in items(value) for name in names * _times(times, names, num_layers)]


def items(value: Sequence[Any]) -> list[tuple[tuple[str, ...], int | None]]:
    """(names, how often); None: repeated through all layers. Raises ValueError for another form."""
    if value and all(isinstance(each, str) for each in value):
        return [(tuple(value), 1)]
    form = "must be a list of names, or of [[names], count] with a whole number or all as count"
    found: list[tuple[tuple[str, ...], int | None]] = []
    for each in value:
        if not isinstance(each, Sequence) or isinstance(each, str) or len(each) != 2:
            raise ValueError(form)
        names, times = each
        named = isinstance(names, Sequence) and not isinstance(names, str) and len(names) > 0
        counted = times == "all" or (isinstance(times, int) and not isinstance(times, bool) and times > 0)
        if not (named and counted and all(isinstance(name, str) for name in names)):
            raise ValueError(form)
        found.append((tuple(names), None if times == "all" else times))
    if not found:
        raise ValueError(form)
    return found


def _times(times: int | None, names: Sequence[str], num_layers: int) -> int:
    return num_layers // len(names) if times is None else times
