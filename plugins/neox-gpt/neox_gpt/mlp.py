"""The feed-forward of GPT-NeoX, with a plain activation or a gated one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE
from neox_gpt.linear import ColumnLinear, RowLinear

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.contracts import Activation, FeedForwardShape


class MLP(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden] through `intermediate_size`.

    A gated activation takes value and gate side by side, so the first projection is twice as wide.
    """

    def __init__(
        self, shape: FeedForwardShape, activation: Activation, tensor: TensorParallel = ALONE, settings: None = None
    ) -> None:
        super().__init__()
        self.activation = activation
        hidden, width = shape.hidden_size, shape.intermediate_size
        sections = (width, width) if shape.gated else (width,)
        self.up = ColumnLinear(hidden, sum(sections), tensor, bias=shape.bias, sections=sections)
        self.down = RowLinear(width, hidden, tensor, bias=shape.bias)
        self.flops_per_token = 6 * hidden * (sum(sections) + width)

    @property
    def last_bias(self) -> Tensor | None:
        """The bias that the caller adds to the output; None where there is none."""
        return self.down.added_bias

    def forward(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """bias: whether the last one is added."""
        down = self.down if bias else self.down.product
        if self.up.bias is not None and getattr(self.activation, "adds_bias", False):
            return down(self.activation.with_bias(self.up.product(x), self.up.added_bias))  # type: ignore[attr-defined]  # checked
        return down(self.activation(self.up(x)))
