"""Gated linear units: value and gate side by side, [..., 2 * width] -> [..., width] (Shazeer 2020, arXiv:2002.05202).

The value is the first half and the gate the second, as in GPT-NeoX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


class Gated:
    """Base class of gated linear units."""

    gated = True

    def __init__(self, settings: None) -> None:
        self.kernels: Mapping[str, Callable[..., Any]] = {}


class GeGLU(Gated):
    """`value * GELU(gate)`."""

    def __call__(self, x: Tensor) -> Tensor:
        compute: Callable[..., Any] = self.kernels.get("geglu", geglu)
        return compute(x)


class TanhGeGLU(Gated):
    """`value * GELU(gate)`, GELU by tanh, as in Gemma."""

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * F.gelu(gate, approximate="tanh")


class SwiGLU(Gated):
    """`value * SiLU(gate)`, SiLU(x) = x * sigmoid(x)."""

    def __call__(self, x: Tensor) -> Tensor:
        compute: Callable[..., Any] = self.kernels.get("swiglu", swiglu)
        return compute(x)


class ReGLU(Gated):
    """`value * max(gate, 0)`."""

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * F.relu(gate)


class SigmoidGLU(Gated):
    """`value * sigmoid(gate)`, the first of its kind (arXiv:1612.08083)."""

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * gate.sigmoid()


class Bilinear(Gated):
    """`value * gate`."""

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * gate


def geglu(x: Tensor) -> Tensor:
    """The op of GeGLU."""
    value, gate = x.chunk(2, dim=-1)
    return value * F.gelu(gate)


def swiglu(x: Tensor) -> Tensor:
    """The op of SwiGLU."""
    value, gate = x.chunk(2, dim=-1)
    return value * F.silu(gate)
