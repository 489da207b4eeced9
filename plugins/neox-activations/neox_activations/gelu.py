"""Gaussian error linear units (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""

import math

from torch import Tensor
from torch.nn import functional as F


class Gelu:
    """`x * Phi(x)`, Phi the normal distribution function, exact."""

    gated = False

    def __init__(self, settings: None) -> None:
        """Nothing to set."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class TanhGelu:
    """`0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, within 1e-3 of the exact form."""

    gated = False

    def __init__(self, settings: None) -> None:
        """Nothing to set."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class ErfGelu:
    """`0.5 x (1 + erf(x / sqrt(2)))` in basic operations, which every export format has: GPT-NeoX's `onnx-safe`."""

    gated = False

    def __init__(self, settings: None) -> None:
        """Nothing to set."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * 0.5 * ((x / math.sqrt(2)).erf() + 1.0)
