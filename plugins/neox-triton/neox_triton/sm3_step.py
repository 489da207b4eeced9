"""A step of SM3-II for a matrix (Anil et al. 2019, arXiv:1901.11150): one pass over weight and gradient.

The new bounds are maxima, whose order changes no bit, so programs may meet in them by atomic operations. With beta they
start from the old ones, of which they keep the larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from neox_triton.choices import SM3_STEP, TILE_ROWS
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import launch


@triton.jit
def _step(
    weight_ptr,
    grad_ptr,
    moved_ptr,
    rows_ptr,
    columns_ptr,
    grown_rows_ptr,
    grown_columns_ptr,
    height,
    width,
    lr,
    kept,
    beta,
    beta_share,
    eps,
    momentum_share,
    DECAYS: tl.constexpr,
    MOVES: tl.constexpr,
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
        squares = squares * beta + grad * grad * beta_share
    else:
        squares += grad * grad
    squares = tl.where(inside, squares, 0.0)
    tl.atomic_max(grown_rows_ptr + row, tl.max(squares, 1), mask=row < height)
    tl.atomic_max(grown_columns_ptr + column, tl.max(squares, 0), mask=column < width)
    step = grad / tl.sqrt_rn(squares + eps)
    if MOVES:
        moved = tl.load(moved_ptr + place, mask=inside, other=0.0).to(tl.float32)
        step = moved + (step - moved) * momentum_share
        tl.store(moved_ptr + place, step.to(moved_ptr.dtype.element_ty), mask=inside)
    weight = weight * kept - lr * step
    tl.store(weight_ptr + place, weight.to(weight_ptr.dtype.element_ty), mask=inside)


def sm3_step(
    weight: Tensor,
    grad: Tensor,
    rows: Tensor,
    columns: Tensor,
    lr: float,
    beta: float,
    eps: float,
    weight_decay: float,
    momentum: float = 0.0,
    moved: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The op, as `neox_sm3.optim.sm3_step`, in place: weight, grad, moved [d1, d2], bounds [d1, 1] and [1, d2].

    All but grad are contiguous.
    """
    height, width = weight.shape
    tile = SM3_STEP.of(weight)
    bounds = [each.float() for each in (rows, columns)]  # atomic operations have no narrow maxima
    grown = [each.clone() if beta > 0 else torch.zeros_like(each) for each in bounds]
    launch(
        _step,
        (triton.cdiv(height, TILE_ROWS), triton.cdiv(width, tile.block)),
        weight,
        grad.contiguous(),
        weight if moved is None else moved,
        *bounds,
        *grown,
        height,
        width,
        float(lr),
        1.0 - lr * weight_decay,
        float(beta),
        float(1 - beta),
        float(eps),
        float(1 - momentum),
        DECAYS=beta > 0,
        MOVES=moved is not None,
        ROWS=TILE_ROWS,
        COLUMNS=tile.block,
        warps=tile.warps,
        stages=tile.stages,
        passes={0: 2, 2: 2},
    )
    rows.copy_(grown[0])
    columns.copy_(grown[1])
    changed = (weight,) if moved is None else (weight, moved)
    increment_version(changed)
    return weight, rows, columns, *changed[1:]


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    height, width = (size.width, 4 * size.width) if size else (5, 123)
    for beta, momentum in ((0.0, 0.0), (0.9, 0.5)):
        weight, grad, moved = (draw(height, width + more, dtype=dtype, device=device).detach() for more in (0, 1, 2))
        bounds = [draw(*shape, dtype=dtype, device=device).detach().square() for shape in ((height, 1), (1, width))]
        last = moved[:, 2:].contiguous() if momentum else None
        yield weight, grad[:, 1:].contiguous() if size else grad[:, 1:], *bounds, 0.1, beta, 1e-30, 0.01, momentum, last


KERNEL = TritonKernel(
    sm3_step, _cases, unasked="it is one launch a parameter, and no GPU has measured it", tiling=SM3_STEP
)
