"""A step of SM3-II for a matrix (Anil et al. 2019, arXiv:1901.11150): one pass over weight and gradient.

The new bounds are maxima, whose order changes no bit, so programs may meet in them by atomic operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import COLUMN_WARPS, TILE_COLUMNS, TILE_ROWS
from neox_triton.examples import WIDTH, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import launch


@triton.jit
def _step(
    weight_ptr,
    grad_ptr,
    rows_ptr,
    columns_ptr,
    grown_rows_ptr,
    grown_columns_ptr,
    height,
    width,
    lr,
    kept,
    beta,
    eps,
    DECAYS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < height) & (column[None, :] < width)
    place = row[:, None].to(tl.int64) * width + column[None, :]
    weight = tl.load(weight_ptr + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0).to(tl.float32)
    of_row = tl.load(rows_ptr + row, mask=row < height, other=0.0)
    of_column = tl.load(columns_ptr + column, mask=column < width, other=0.0)
    squares = tl.minimum(of_row[:, None], of_column[None, :])
    if DECAYS:
        squares = squares * beta + grad * grad * (1.0 - beta)
    else:
        squares += grad * grad
    squares = tl.where(inside, squares, 0.0)
    tl.atomic_max(grown_rows_ptr + row, tl.max(squares, 1), mask=row < height)
    tl.atomic_max(grown_columns_ptr + column, tl.max(squares, 0), mask=column < width)
    weight = weight * kept - lr * (grad / tl.sqrt_rn(squares + eps))
    tl.store(weight_ptr + place, weight.to(weight_ptr.dtype.element_ty), mask=inside)


def sm3_step(
    weight: Tensor, grad: Tensor, rows: Tensor, columns: Tensor, lr: float, beta: float, eps: float, weight_decay: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The op, as `neox_sm3.optim.sm3_step`, in place: weight, grad [d1, d2], fp32 bounds [d1, 1] and [1, d2].

    weight and bounds are contiguous.
    """
    height, width = weight.shape
    grown_rows, grown_columns = torch.zeros_like(rows), torch.zeros_like(columns)
    launch(
        _step,
        (triton.cdiv(height, TILE_ROWS), triton.cdiv(width, TILE_COLUMNS)),
        weight,
        grad.contiguous(),
        rows,
        columns,
        grown_rows,
        grown_columns,
        height,
        width,
        float(lr),
        1.0 - lr * weight_decay,
        float(beta),
        float(eps),
        DECAYS=beta > 0,
        ROWS=TILE_ROWS,
        COLUMNS=TILE_COLUMNS,
        warps=COLUMN_WARPS,
    )
    rows.copy_(grown_rows)
    columns.copy_(grown_columns)
    return weight, rows, columns


def _cases(dtype: torch.dtype, device: torch.device, large: bool) -> Iterator[tuple[Any, ...]]:
    height, width = (WIDTH, 4 * WIDTH) if large else (5, 123)
    for beta in (0.0, 0.9):
        weight, grad = (draw(height, width + more, dtype=dtype, device=device).detach() for more in (0, 1))
        bounds = [
            draw(*shape, dtype=torch.float32, device=device).detach().square() for shape in ((height, 1), (1, width))
        ]
        yield weight, grad[:, 1:], *bounds, 0.1, beta, 1e-30, 0.01


KERNEL = TritonKernel(sm3_step, _cases)
