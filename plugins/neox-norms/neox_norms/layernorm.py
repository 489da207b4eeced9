"""Layer normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neox_norms.settings import LayerNormSettings


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last dimension (Ba et al. 2016, arXiv:1607.06450).

    torch's kernel takes the statistics in fp32 whatever the dtype of x.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def __init__(self, dim: int, settings: LayerNormSettings) -> None:
        super().__init__()
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.eps = settings.layernorm_epsilon
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    @property
    def adds_residual(self) -> bool:
        """Whether adding a residual here, and not before, saves a pass over memory."""
        return "layer_norm" in self.kernels

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """With a residual: (the norm of `x + residual`, the sum)."""
        compute: Callable[..., Any] = self.kernels.get("layer_norm", layer_norm)
        return compute(x, self.weight, self.bias, self.eps, residual)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The op: x [..., dim], weight and bias [dim] -> [..., dim] in the dtype of x.

    With a residual it is that of `x + residual`, returned together with the sum.
    """
    if residual is not None:
        total = x + residual
        return layer_norm(total, weight, bias, eps), total
    wide = x if x.dtype == weight.dtype else x.to(torch.promote_types(x.dtype, weight.dtype))
    return F.layer_norm(wide, weight.shape, weight, bias, eps).to(x.dtype)
