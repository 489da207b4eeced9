"""Scale, causal mask and softmax of attention scores, as Megatron's kernel of this name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import CAUSAL_SOFTMAX, MAX_WIDTH
from neox_triton.examples import Size, scores
from neox_triton.kernel import TritonKernel
from neox_triton.launch import rows
from neox_triton.softmax_rows import softmax_backward, start_by_rows


@triton.jit
def _forward(x_ptr, y_ptr, num_rows, keys, queries, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (column < keys) & (row < num_rows)
    seen = inside & (column <= row % queries + keys - queries)
    place = row * keys + column
    x = tl.load(x_ptr + place, mask=seen, other=-float("inf")).to(tl.float32) * scale
    highest = tl.max(x, 1)
    x = tl.exp(x - tl.where(highest == -float("inf"), 0.0, highest)[:, None])
    total = tl.sum(x, 1)
    y = x / tl.where(total == 0.0, 1.0, total)[:, None]  # a row behind the last one
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


class _CausalSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        queries, keys = x.shape[-2:]
        flat = rows(x)
        y = torch.empty_like(flat)
        start_by_rows(CAUSAL_SOFTMAX, _forward, (flat, y, len(flat)), keys, queries, scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return softmax_backward(grad, ctx.saved_tensors[0], ctx.scale, CAUSAL_SOFTMAX), None


def causal_softmax(x: Tensor, scale: float) -> Tensor:
    """The op, as `neox_gpt.attention.softmax.causal_softmax`: scores [..., queries, keys] -> probabilities.

    scale is above 0.
    """
    return _CausalSoftmax.apply(x, scale)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    yield scores(dtype, device, size), 0.25


KERNEL = TritonKernel(causal_softmax, _cases, max_width=MAX_WIDTH, tiling=CAUSAL_SOFTMAX)
