"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neox_norms.settings import RMSNormSettings


class RMSNorm(nn.Module):
    """`x / (rms(x) + eps) * weight` over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467).

    The epsilon is added to the root mean square itself, as GPT-NeoX does it; with `rms_norm_epsilon_in: mean-square`
    under the square root, as LLaMA does. With `rms_norm_adds_one` it multiplies by 1 + weight.
    An input of zeros gives zeros, and a gradient of its own that is finite.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"weight"})

    def __init__(self, dim: int, settings: RMSNormSettings) -> None:
        super().__init__()
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.eps = settings.rms_norm_epsilon
        self.under_the_root = settings.rms_norm_epsilon_in == "mean-square"
        self.adds_one = settings.rms_norm_adds_one
        self.weight = nn.Parameter(torch.zeros(dim) if self.adds_one else torch.ones(dim))

    @property
    def adds_residual(self) -> bool:
        """Whether adding a residual here, and not before, saves a pass over memory."""
        return "rms_norm" in self.kernels

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """With a residual: (the norm of `x + residual`, the sum)."""
        compute: Callable[..., Any] = self.kernels.get("rms_norm", rms_norm)
        weight = 1 + _wide(self.weight) if self.adds_one else self.weight
        return compute(x, weight, self.eps, self.under_the_root, residual)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, under_the_root: bool, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The op: x [..., dim], weight [dim] -> [..., dim] in the dtype of x.

    With a residual it is that of `x + residual`, returned together with the sum.
    """
    if residual is not None:
        total = x + residual
        return rms_norm(total, weight, eps, under_the_root), total
    wide = _wide(x)
    if under_the_root:
        root = (wide.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return (wide / root * weight).to(x.dtype)
    rms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True) * wide.shape[-1] ** -0.5
    return (wide / (rms + eps) * weight).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
