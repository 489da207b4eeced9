"""Gated linear units: value and gate side by side, [..., 2 * width] -> [..., width] (Shazeer 2020, arXiv:2002.05202).

The value is the first half and the gate the second, as in GPT-NeoX.
"""

from torch import Tensor
from torch.nn import functional as F


class GeGLU:
    """`value * GELU(gate)`."""

    gated = True

    def __init__(self, settings: None) -> None:
        """Nothing to set."""

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * F.gelu(gate)


class SwiGLU:
    """`value * SiLU(gate)`, SiLU(x) = x * sigmoid(x)."""

    gated = True

    def __init__(self, settings: None) -> None:
        """Nothing to set."""

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * F.silu(gate)
