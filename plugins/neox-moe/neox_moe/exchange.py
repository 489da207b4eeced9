"""Rows sent to the data-parallel ranks that have their experts, and what those make of them sent back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from neox_moe.dispatch import permute, places

if TYPE_CHECKING:
    from neox_plain.api import Spread
    from torch.distributed import ProcessGroup


@torch._disable_dynamo  # noqa: SLF001  lengths depend on the data; torch.compiler.disable would import the compiler
def at_experts(rows: Tensor, ends: Tensor, spread: Spread, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What the experts of all ranks of `spread.group` make of `rows`: [rows, hidden] -> the same. Collective.

    rows: sorted by expert. ends: int32 [experts], the row after the last one of each; later rows give 0. compute:
    (rows sorted by expert, ends) -> rows, by the experts of this rank. Every rank has equally many of them, in order.
    The host waits for the device to learn how many rows come and go. In the backward pass, gradients take the way back.
    """
    counts = ends.diff(prepend=ends.new_zeros(1)).view(spread.size, -1)  # rows by rank and its expert
    come = torch.empty_like(counts)
    dist.all_to_all_single(come, counts, group=spread.group)
    out, into = torch.stack([counts.sum(1), come.sum(1)]).tolist()
    received = _exchange(rows[: sum(out)], into, out, spread.group)
    experts = torch.arange(counts.shape[1], device=rows.device).expand_as(come).reshape(-1)
    order, place = places(experts.repeat_interleave(come.reshape(-1), output_size=sum(into)))
    made = compute(permute(received, order, place), come.sum(0).cumsum(0).int())
    back = _exchange(permute(made, place, order), out, into, spread.group)
    return F.pad(back, (0, 0, 0, len(rows) - len(back)))


def _exchange(rows: Tensor, come: list[int], go: list[int], group: ProcessGroup | None) -> Tensor:
    result: Tensor = _Exchange.apply(rows, come, go, group)
    return result


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, come: list[int], go: list[int], group: ProcessGroup | None) -> Tensor:
        ctx.back = go, come, group
        result = rows.new_empty(sum(come), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), come, go, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(grad, *ctx.back), None, None, None
