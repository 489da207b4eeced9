"""Layer normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from neox_norms.settings import LayerNormSettings


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last dimension (Ba et al. 2016, arXiv:1607.06450).

    torch's kernel takes the statistics in fp32 whatever the dtype of x.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def __init__(self, dim: int, settings: LayerNormSettings) -> None:
        super().__init__()
        self.eps = settings.layernorm_epsilon
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == self.weight.dtype else x.to(torch.promote_types(x.dtype, self.weight.dtype))
        return F.layer_norm(wide, self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)
