"""Gaussian error linear units (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


class Gelu:
    """`x * Phi(x)`, Phi the normal distribution function, exact."""

    gated = False
    by_tanh = False

    def __init__(self, settings: None) -> None:
        self.kernels: Mapping[str, Callable[..., Any]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh" if self.by_tanh else "none")

    @property
    def adds_bias(self) -> bool:
        """Whether `with_bias` is more than a sum and a call."""
        return "bias_gelu" in self.kernels

    def with_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        """The activation of `x + bias`; x [..., width], bias [width]."""
        compute: Callable[..., Any] = self.kernels.get("bias_gelu", bias_gelu)
        return compute(x, bias, self.by_tanh)


class TanhGelu(Gelu):
    """`0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, within 1e-3 of the exact form."""

    by_tanh = True


def bias_gelu(x: Tensor, bias: Tensor, by_tanh: bool) -> Tensor:
    """The op: GELU of `x + bias`, x [..., width], bias [width] -> [..., width] in the dtype of x."""
    return F.gelu(x + bias.to(x.dtype), approximate="tanh" if by_tanh else "none")


class ErfGelu:
    """`0.5 x (1 + erf(x / sqrt(2)))` in basic operations, which every export format has: GPT-NeoX's `onnx-safe`."""

    gated = False

    def __init__(self, settings: None) -> None:
        """Takes no settings."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * 0.5 * ((x / math.sqrt(2)).erf() + 1.0)
