"""What the softmaxes have in common: how rows are dealt to programs, and the backward pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import Tiling, warps_of
from neox_triton.launch import block_of, launch, rows


@triton.jit
def _backward(grad_ptr, y_ptr, dx_ptr, num_rows, keys, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (column < keys) & (row < num_rows)
    place = row * keys + column
    y = tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0).to(tl.float32)
    dx = y * (grad - tl.sum(grad * y, 1)[:, None]) * scale
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def softmax_backward(grad: Tensor, y: Tensor, scale: float, tiling: Tiling) -> Tensor:
    """The gradient of the scores. y: probabilities [rows, keys]; where one is 0 the score gets none."""
    dx = torch.empty_like(y)
    start_by_rows(tiling, _backward, (rows(grad), y, dx, len(y)), y.shape[1], scale)
    return dx.view(grad.shape)


def start_by_rows(tiling: Tiling, kernel: object, arguments: tuple[Any, ...], keys: int, *more: object) -> None:
    """Start a kernel whose arguments are a tensor of rows, others, the number of rows, that of keys, and others."""
    block, tile = block_of(keys), tiling.of(arguments[0])
    at_once = max(1, tile.block // block)
    grid = (triton.cdiv(arguments[0].shape[0], at_once),)
    cut: dict[str, Any] = {
        "ROWS": at_once,
        "BLOCK": block,
        "warps": tile.warps or warps_of(at_once * block),
        "stages": tile.stages,
    }
    launch(kernel, grid, *arguments, keys, *more, **cut)
