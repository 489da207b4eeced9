"""A trained vector for each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neox_positions.none import NoPosition

if TYPE_CHECKING:
    from neox_gpt.api import PositionShape


class Learned(NoPosition):
    """Adds row `position` of a table [max_positions, hidden]; a position beyond the table is an IndexError.

    The table is left empty for the model to draw, as every weight matrix is.
    """

    def __init__(self, shape: PositionShape, settings: None) -> None:
        super().__init__(shape, settings)
        self.weight = nn.Parameter(torch.empty(shape.max_positions, shape.hidden_size))

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden + F.embedding(positions, self.weight).to(hidden.dtype)
