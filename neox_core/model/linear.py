"""The projection that all layers are made of."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from neox_core.model.matmul import linear


class Linear(nn.Module):
    """`x @ weight.T + bias`: [..., inputs] -> [..., outputs].

    The weight is left empty, since `model/init.py` draws every weight from its name; the bias starts at 0.
    residual_output: whether the result is added to the residual stream, whose weights start smaller.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, residual_output: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.residual_output = residual_output

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}"
