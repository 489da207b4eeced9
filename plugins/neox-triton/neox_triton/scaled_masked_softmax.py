"""Scale, any mask and softmax of attention scores, as Megatron's kernel of this name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import MASKED_SOFTMAX, MAX_WIDTH
from neox_triton.examples import Size, scores
from neox_triton.kernel import TritonKernel
from neox_triton.launch import rows
from neox_triton.softmax_rows import softmax_backward, start_by_rows


@triton.jit
def _forward(
    x_ptr,
    mask_ptr,
    y_ptr,
    num_rows,
    keys,
    heads,
    queries,
    mask_batch,
    mask_head,
    mask_query,
    mask_key,
    scale,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (column < keys) & (row < num_rows)
    query = row % queries
    head = row // queries % heads
    batch = row // queries // heads
    mask = mask_ptr + batch * mask_batch + head * mask_head + query * mask_query + column * mask_key
    seen = inside & (tl.load(mask, mask=inside, other=1) == 0)
    place = row * keys + column
    x = tl.load(x_ptr + place, mask=seen, other=-float("inf")).to(tl.float32) * scale
    highest = tl.max(x, 1)
    x = tl.where(seen, tl.exp(x - tl.where(highest == -float("inf"), 0.0, highest)[:, None]), 0.0)
    total = tl.sum(x, 1)
    y = x / tl.where(total == 0.0, 1.0, total)[:, None]  # a query that sees nothing
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        heads, queries, keys = x.shape[-3:]
        flat = rows(x)
        y = torch.empty_like(flat)
        hidden = mask.view(torch.uint8).expand(x.shape)
        tensors = flat, hidden, y, len(flat)
        start_by_rows(MASKED_SOFTMAX, _forward, tensors, keys, heads, queries, *hidden.stride(), scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return softmax_backward(grad, ctx.saved_tensors[0], ctx.scale, MASKED_SOFTMAX), None, None


def masked_softmax(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The op, as `neox_gpt.attention.softmax.masked_softmax`: scores [batch, heads, queries, keys] -> probabilities.

    mask: bool, broadcasts to the scores, True where a key is not seen. scale is above 0.
    """
    return _MaskedSoftmax.apply(x, mask, scale)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    x = scores(dtype, device, size)
    column = torch.arange(x.shape[-1], device=device)
    yield x, column % 5 == column[: x.shape[-2], None] % 4, 0.25


KERNEL = TritonKernel(masked_softmax, _cases, max_width=MAX_WIDTH, tiling=MASKED_SOFTMAX)
