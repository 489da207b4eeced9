"""The projections that all layers are made of, whole or shared by the ranks of a tensor-parallel group."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE, Cut, TensorParallel
from neox_gpt.change_contracts import LinearShape
from neox_gpt.matmul import linear

if TYPE_CHECKING:
    from neox_gpt.changes import LinearChange


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
        self.changes: nn.ModuleDict | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.changes is None:
            return linear(x, self.weight, self.bias)
        return self._with_bias(self._changed(x))

    def product(self, x: Tensor) -> Tensor:
        """What `forward` adds the bias to."""
        return self._changed(x)

    def take_change(self, name: str, change: LinearChange) -> None:
        """Let `change` act after those that were taken before."""
        self.changes = nn.ModuleDict() if self.changes is None else self.changes
        self.changes[name] = change

    def _changed(self, x: Tensor) -> Tensor:
        """The product of the input and this rank's part of the weight, after the model changes."""
        if self.changes is None:
            return linear(x, self.weight)
        weight: Tensor = self.weight
        for each in self.changes.values():
            x, weight = each.change_input(x), each.change_weight(weight)
        y = linear(x, weight)
        for each in self.changes.values():
            y = each(x, y)
        return y

    @property
    def added_bias(self) -> Tensor | None:
        """The bias with what model changes make of it; None: there is none."""
        bias: Tensor | None = self.bias
        for each in () if bias is None or self.changes is None else self.changes.values():
            bias = each.change_bias(bias)
        return bias

    def _with_bias(self, total: Tensor) -> Tensor:
        bias = self.added_bias
        return total if bias is None else total + bias.to(total.dtype)

    def extra_repr(self) -> str:
        """What torch shows of the layer in a model."""
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
        self.sections = sections or (outputs,)
        cut = tensor.cut(0, self.sections)
        self.cuts: dict[str, Cut] = {} if tensor.size == 1 else {name: cut for name, _ in self.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.tensor.enter(x))

    def product(self, x: Tensor) -> Tensor:
        return self._changed(self.tensor.enter(x))

    def shape(self, name: str) -> LinearShape:
        """The whole layer. name: in the model."""
        return LinearShape(name, self.sizes[0], sum(self.sections), "outputs", self.sections)


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
        if (
            self.bias is None
        ):  # torch would find nothing to compile after the sum, and then add no bias of others either
            return self.product(x)
        return self._with_bias(self.product(x))

    def product(self, x: Tensor) -> Tensor:
        total = self._changed(x)
        return total if self.tensor.size == 1 else self.tensor.leave(total)

    def shape(self, name: str) -> LinearShape:
        """The whole layer. name: in the model."""
        inputs, outputs = self.sizes
        return LinearShape(name, inputs * self.tensor.size, outputs, "inputs")
