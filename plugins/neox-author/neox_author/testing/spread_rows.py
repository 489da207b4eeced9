"""A weight whose rows are spread over data-parallel ranks, for the check of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

if TYPE_CHECKING:
    from neox_plain.api import Spread


class _Gathered(torch.autograd.Function):
    """The rows of all ranks. The gradient of a rank's rows is the sum of what all ranks give for them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, parts: Spread) -> Tensor:
        ctx.parts = parts
        found = [torch.empty_like(rows) for _ in range(parts.size)]
        dist.all_gather(found, rows.contiguous(), group=parts.group)
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total, group=ctx.parts.group)
        return total.chunk(ctx.parts.size)[ctx.parts.rank].clone(), None


def spread_rows(block: nn.Module, parts: Spread) -> None:
    """Give this rank some of the rows of the first matrix in a block. The block computes the same."""
    name, weight = next((name, each) for name, each in block.named_parameters(recurse=False) if each.dim() == 2)
    cut = parts.cut(0, len(weight))
    rows: Any = nn.Parameter(cut.of(weight.detach()).clone())
    rows.cut, rows.spread = cut, parts
    setattr(block, name, rows)
    plain, within = block.forward, [False]

    def forward(x: Tensor) -> Tensor:
        if within[0]:
            result: Tensor = plain(x)
            return result
        within[0] = True
        try:
            result = functional_call(block, {name: _Gathered.apply(rows, parts)}, (x,))
        finally:
            within[0] = False
        return result

    block.forward = forward
