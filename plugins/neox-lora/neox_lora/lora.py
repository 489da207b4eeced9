"""Low-rank adapters: Hu et al. 2021, arXiv:2106.09685."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from neox_gpt.api import LinearChange, linear
from torch import Tensor, nn

from neox_lora.plan import is_target

if TYPE_CHECKING:
    from neox_gpt.api import LinearShape

    from neox_core.parallel.tensor import TensorParallel
    from neox_lora.settings import LoraBlock, LoraSettings


class Lora:
    """Adapters of the target layers. All weights of the model itself are frozen."""

    def __init__(self, settings: LoraSettings) -> None:
        self._block = settings.lora
        self.draws = settings.lora.dropout > 0

    def change(self, linear: LinearShape, tensor: TensorParallel) -> Adapter | None:
        return Adapter(linear, tensor, self._block) if is_target(linear.name, self._block) else None

    def freezes(self, name: str) -> bool:
        return True


class Adapter(LinearChange):
    """`y + alpha / rank * up @ down @ x`. `up` starts at 0, so the model starts as it is without the adapter."""

    starts_as_made: ClassVar[frozenset[str]] = frozenset({"up"})
    multiplied: ClassVar[frozenset[str]] = frozenset({"down", "up"})

    def __init__(self, linear: LinearShape, tensor: TensorParallel, block: LoraBlock) -> None:
        super().__init__(linear, tensor)
        self.scale, self.dropout = block.alpha / block.rank, block.dropout
        inputs, outputs = linear.inputs, linear.outputs
        if linear.split == "inputs":
            inputs = tensor.share(inputs)
            self.cuts = {"down": tensor.cut(1, (linear.inputs,))}
        else:
            outputs = tensor.share(outputs)
            self.cuts = {"up": tensor.cut(0, linear.sections)}
        self.down = nn.Parameter(torch.empty(block.rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, block.rank))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[batch, seq, inputs], [batch, seq, outputs] -> the same as y."""
        down, up = self._used(self.down, "down"), self._used(self.up, "up")
        return y + self.scale * linear(linear(self.drop(x, self.dropout), down), up)

    def folded(self, weight: Tensor) -> Tensor:
        wide = torch.promote_types(weight.dtype, torch.float32)
        return weight.to(wide) + self.scale * (self.up.to(wide) @ self.down.to(wide))

    def _used(self, parameter: nn.Parameter, name: str) -> Tensor:
        return parameter if name in self.cuts else self.tensor.copy(parameter)
