"""A position to try mixers with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor


@frozen
class Turn:
    """Turns queries and keys by their positions, and lowers scores with distance. Keeps `contracts.Position`."""

    turn: float = 0.7
    slope: float = 0.2
    no_weight_decay = frozenset[str]()

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = positions.to(torch.float64) * self.turn
        angle = angle[:, None, :, None] if positions.dim() == 2 else angle[:, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def rotate(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        return self._turned(query, prepared), self._turned(key, prepared)

    def score_bias(self, prepared: Any) -> Callable[..., Tensor] | None:
        if not self.slope:
            return None
        return lambda head, query, key: (key - query) * (head + 1) * self.slope

    @staticmethod
    def _turned(x: Tensor, prepared: Any) -> Tensor:
        cosine, sine = prepared
        one, two = x.chunk(2, -1)
        return torch.cat((one * cosine - two * sine, two * cosine + one * sine), -1)
