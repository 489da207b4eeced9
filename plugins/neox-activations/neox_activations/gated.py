"""Gated linear units: value and gate side by side, [..., 2 * width] -> [..., width] (Shazeer 2020, arXiv:2002.05202).

The value is the first half and the gate the second, as in GPT-NeoX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


class GeGLU:
    """`value * GELU(gate)`."""

    gated = True

    def __init__(self, settings: None) -> None:
        self.kernels: Mapping[str, Callable[..., Any]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.get("geglu", geglu)(x)  # type: ignore[no-any-return]


class SwiGLU:
    """`value * SiLU(gate)`, SiLU(x) = x * sigmoid(x)."""

    gated = True

    def __init__(self, settings: None) -> None:
        self.kernels: Mapping[str, Callable[..., Any]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.get("swiglu", swiglu)(x)  # type: ignore[no-any-return]


def geglu(x: Tensor) -> Tensor:
    """The op of GeGLU."""
    value, gate = x.chunk(2, dim=-1)
    return value * F.gelu(gate)


def swiglu(x: Tensor) -> Tensor:
    """The op of SwiGLU."""
    value, gate = x.chunk(2, dim=-1)
    return value * F.silu(gate)
