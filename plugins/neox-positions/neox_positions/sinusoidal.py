"""Fixed sines and cosines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neox_positions.none import NoPosition


class Sinusoidal(NoPosition):
    """Adds sin(position / 10000^(2i / hidden)) in the first half of the dimensions and the cosines in the second.

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5, with GPT-NeoX's order of dimensions. No parameters.
    """

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        half = -(-self.shape.hidden_size // 2)
        exponent = torch.arange(half, device=positions.device, dtype=torch.float32) * (2 / self.shape.hidden_size)
        angles = positions[..., None].float() * torch.exp(-math.log(10000.0) * exponent)  # [(batch,) seq, half]
        table = torch.cat((angles.sin(), angles.cos()), dim=-1)[..., : self.shape.hidden_size]
        return hidden + table.to(hidden.dtype)
