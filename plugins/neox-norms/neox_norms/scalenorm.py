"""Normalisation to a learned length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neox_norms.settings import ScaleNormSettings


class ScaleNorm(nn.Module):
    """`x / max(|x|, eps) * weight` over the last dimension, one weight in all (Nguyen and Salazar 2019,
    arXiv:1910.05895). The weight starts at 1, as in GPT-NeoX; the paper starts it at sqrt(dim).
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"weight"})

    def __init__(self, dim: int, settings: ScaleNormSettings) -> None:
        super().__init__()
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.dim = dim
        self.eps = settings.scalenorm_epsilon
        self.weight = nn.Parameter(torch.ones(1))

    @property
    def adds_residual(self) -> bool:
        """Whether adding a residual here, and not before, saves a pass over memory."""
        return "scale_norm" in self.kernels

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """With a residual: (the norm of `x + residual`, the sum)."""
        compute: Callable[..., Any] = self.kernels.get("scale_norm", scale_norm)
        return compute(x, self.weight, self.eps, residual)


def scale_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """The op: x [..., dim], weight [1] -> [..., dim] in the dtype of x.

    With a residual it is that of `x + residual`, returned together with the sum.
    """
    if residual is not None:
        total = x + residual
        return scale_norm(total, weight, eps), total
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=eps)
    return (wide * (weight / length)).to(x.dtype)
