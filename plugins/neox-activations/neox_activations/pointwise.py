"""Elementwise activations that need no kernel, [..., width] -> [..., width]: the rest of GPT-NeoX's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


class ReLU:
    """`max(x, 0)`."""

    gated = False

    def __init__(self, settings: None) -> None:
        """Takes no settings."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x)


class SiLU(ReLU):
    """`x * sigmoid(x)` (arXiv:1702.03118); GPT-NeoX's `swish` is the same (arXiv:1710.05941 with beta = 1)."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Mish(ReLU):
    """`x * tanh(ln(1 + e^x))` (arXiv:1908.08681)."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.mish(x)


class Softsign(ReLU):
    """`x / (1 + |x|)`."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.softsign(x)
