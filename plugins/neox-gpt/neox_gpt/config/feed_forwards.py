"""The feed-forward of each layer, from `mlp-type`."""

from collections.abc import Sequence
from typing import Any

from neox_gpt.config.per_layer import check_form, items, names_of_layers


def pattern(instance: Any, field: Any, value: str | Sequence[Any]) -> None:
    """Check the form of `mlp-type`; a rule checks that a list fits the number of layers."""
    if not isinstance(value, str):
        check_form(value)


def feed_forwards_used(mlp_type: str | Sequence[Any]) -> tuple[str, ...]:
    """The feed-forwards in use, each once, in the order of the first layers that have them."""
    if isinstance(mlp_type, str):
        return (mlp_type,)
    return tuple(dict.fromkeys(name for names, _ in items(mlp_type) for name in names))


def feed_forward_of_layer(num_layers: int, mlp_type: str | Sequence[Any]) -> tuple[int, ...] | None:
    """For each layer its place among those in use; None where all layers have the first."""
    if isinstance(mlp_type, str):
        return None
    place = {name: index for index, name in enumerate(feed_forwards_used(mlp_type))}
    found = tuple(place[name] for name in names_of_layers(num_layers, mlp_type))
    return found if any(found) else None
