"""Keys and values of the tokens that a generation has already seen."""

from __future__ import annotations

import torch
from torch import Tensor

from neox_gpt.shape import ModelShape


class KeyValueCache:
    """Room for `capacity` tokens in every layer, filled from the front.

    kv_heads: of this rank. length: tokens held.
    A forward pass writes each layer's new part with `extend`, then moves on with `advance`.
    """

    def __init__(
        self,
        shape: ModelShape,
        kv_heads: int,
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        size = (shape.num_layers, 2, batch, kv_heads, capacity, shape.head_dim)
        self._store = torch.empty(size, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add [batch, kv heads, new, head_dim] and return all of the layer: [batch, kv heads, held, head_dim]."""
        end = self.length + key.shape[2]
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit a cache of {self.capacity}")
        keys, values = self._store[layer]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, new: int) -> None:
        """Count the tokens that every layer has been given."""
        self.length += new

    def clear(self) -> None:
        """Forget everything."""
        self.length = 0
