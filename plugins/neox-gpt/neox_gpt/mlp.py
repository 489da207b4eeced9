"""The part of a block that looks at one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE
from neox_gpt.linear import ColumnLinear, RowLinear

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.contracts import Activation
    from neox_gpt.shape import ModelShape


class MLP(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden] through `intermediate_size`.

    A gated activation takes value and gate side by side, so the first projection is twice as wide.
    """

    def __init__(self, shape: ModelShape, activation: Activation, tensor: TensorParallel = ALONE) -> None:
        super().__init__()
        self.activation = activation
        width = shape.intermediate_size
        sections = (width, width) if shape.gated else (width,)
        self.up = ColumnLinear(shape.hidden_size, shape.mlp_width, tensor, bias=shape.mlp_bias, sections=sections)
        self.down = RowLinear(width, shape.hidden_size, tensor, bias=shape.mlp_bias)

    def forward(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """bias: whether the last one is added."""
        down = self.down if bias else self.down.product
        if self.up.bias is not None and getattr(self.activation, "adds_bias", False):
            return down(self.activation.with_bias(self.up.product(x), self.up.bias))  # type: ignore[attr-defined]  # checked
        return down(self.activation(self.up(x)))
