"""Attention with linear biases."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_positions.none import NoPosition

if TYPE_CHECKING:
    from neox_gpt.api import ScoreBias


class Alibi(NoPosition):
    """Takes `slope * distance` from each score; no parameters (Press et al. 2022, arXiv:2108.12409).

    The slopes of n heads, n a power of two, are 2^(-8 / n), 2^(-16 / n) ... 2^-8. For another n they are those of the
    power of two below it, then every other one of the power of two above it, as in the paper's code.
    """

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The slope of each head, [heads]."""
        return slopes(self.shape.num_heads, positions.device)

    def score_bias(self, prepared: Any) -> ScoreBias:
        def bias(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            result: Tensor = prepared[head] * (key - query)
            return result

        return bias


def slopes(num_heads: int, device: torch.device | str = "cpu") -> Tensor:
    """What each head takes from a score for each token of distance. Made on the device: copying numbers of the host to
    a GPU would wait for it.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    head = torch.arange(num_heads, device=device, dtype=torch.float64)
    exponent = torch.where(head < lower, 8 * (head + 1), 4 * (2 * (head - lower) + 1)) / lower
    return torch.exp2(-exponent).float()
