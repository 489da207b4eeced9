"""What the layers keep of the tokens that a generation has already seen: softmax attention their keys and values."""

from __future__ import annotations

from torch import Tensor


class DecodingCache:
    """What each layer keeps of up to `capacity` tokens. length: tokens held.

    A forward pass has each layer keep what it needs of its new tokens, then moves on with `advance`.
    """

    def __init__(self, capacity: int) -> None:
        self.states: dict[int, dict[str, Tensor]] = {}
        self.capacity = capacity
        self.length = 0

    def state(self, layer: int) -> dict[str, Tensor]:
        """What a layer keeps, to read and to change; empty before the first token."""
        return self.states.setdefault(layer, {})

    def advance(self, new: int) -> None:
        """Count the tokens that every layer has been given."""
        self.length += new

    def clear(self) -> None:
        """Forget everything."""
        self.states.clear()
        self.length = 0


def extend(cache: DecodingCache, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Add [batch, kv heads, new, head_dim] and return all of the layer: [batch, kv heads, held, head_dim]."""
    state, end = cache.state(layer), cache.length + key.shape[2]
    if end > cache.capacity:
        raise ValueError(f"{end} tokens do not fit a cache of {cache.capacity}")
    if not state:  # room for all tokens, filled from the front
        room = (2, *key.shape[:2], cache.capacity, key.shape[3])
        state["keys and values"] = key.new_empty(room)
    keys, values = state["keys and values"]
    keys[:, :, cache.length : end] = key
    values[:, :, cache.length : end] = value
    return keys[:, :, :end], values[:, :, :end]
