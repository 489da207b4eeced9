"""Scale, causal mask and softmax of attention scores, as Megatron's kernel of this name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import MAX_WIDTH, warps_of
from neox_triton.examples import Size, scores
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, rows
from neox_triton.softmax_backward import softmax_backward


@triton.jit
def _forward(x_ptr, y_ptr, queries, keys, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    seen = column <= row % queries + keys - queries
    x = tl.load(x_ptr + row * keys + column, mask=seen, other=-float("inf")).to(tl.float32) * scale
    x = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * keys + column, (x / tl.sum(x, 0)).to(y_ptr.dtype.element_ty), mask=column < keys)


class _CausalSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        queries, keys = x.shape[-2:]
        flat = rows(x)
        y = torch.empty_like(flat)
        block = block_of(keys)
        launch(_forward, (flat.shape[0],), flat, y, queries, keys, scale, BLOCK=block, warps=warps_of(block))
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return softmax_backward(grad, ctx.saved_tensors[0], ctx.scale), None


def causal_softmax(x: Tensor, scale: float) -> Tensor:
    """The op, as `neox_core.model.softmax.causal_softmax`: scores [..., queries, keys] -> probabilities.

    scale is above 0.
    """
    return _CausalSoftmax.apply(x, scale)  # type: ignore[no-any-return, no-untyped-call]


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    yield scores(dtype, device, size), 0.25


KERNEL = TritonKernel(causal_softmax, _cases, max_width=MAX_WIDTH)
