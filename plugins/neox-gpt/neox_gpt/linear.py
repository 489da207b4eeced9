"""The projections that all layers are made of, whole or shared by the ranks of a tensor-parallel group."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE, Cut, TensorParallel
from neox_gpt.matmul import linear


class Linear(nn.Module):
    """`x @ weight.T + bias`: [..., inputs] -> [..., outputs].

    The weight is left empty, since `init.py` draws every weight from its name; the bias starts at 0.
    residual_output: whether the result is added to the residual stream, whose weights start smaller.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, residual_output: bool = False) -> None:
        super().__init__()
        self.sizes = inputs, outputs  # at ZeRO 3 the weight itself is in parts
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.residual_output = residual_output

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """What `forward` adds the bias to."""
        return linear(x, self.weight)

    def extra_repr(self) -> str:
        inputs, outputs = self.sizes
        return f"{inputs}, {outputs}, bias={self.bias is not None}"


class ColumnLinear(Linear):
    """A Linear of which each rank holds some outputs: [batch, seq, inputs] -> [batch, seq, its outputs].

    sections: lengths that make up the outputs and are each cut in equal parts; one, `outputs`, unless given.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        tensor: TensorParallel = ALONE,
        *,
        bias: bool = True,
        sections: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(inputs, tensor.share(outputs), bias=bias)
        self.tensor = tensor
        cut = tensor.cut(0, sections or (outputs,))
        self.cuts: dict[str, Cut] = {} if tensor.size == 1 else {name: cut for name, _ in self.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.tensor.enter(x), self.weight, self.bias)

    def product(self, x: Tensor) -> Tensor:
        return linear(self.tensor.enter(x), self.weight)


class RowLinear(Linear):
    """A Linear of which each rank holds some inputs: [batch, seq, its inputs] -> [batch, seq, outputs].

    Its result goes to the residual stream. Every rank has the whole bias, which is added to the sum.
    """

    def __init__(self, inputs: int, outputs: int, tensor: TensorParallel = ALONE, *, bias: bool = True) -> None:
        super().__init__(tensor.share(inputs), outputs, bias=bias, residual_output=True)
        self.tensor = tensor
        self.cuts: dict[str, Cut] = {} if tensor.size == 1 else {"weight": tensor.cut(1, (inputs,))}

    def forward(self, x: Tensor) -> Tensor:
        if self.tensor.size == 1:
            return super().forward(x)
        total = self.product(x)
        return total if self.bias is None else total + self.bias.to(total.dtype)

    def product(self, x: Tensor) -> Tensor:
        total = linear(x, self.weight)
        return total if self.tensor.size == 1 else self.tensor.leave(total)
