"""What the kernels of norms have in common: how they are started, and a residual that is added before the norm."""

from __future__ import annotations

from typing import Any

import torch
import triton
from attrs import frozen
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import PROGRAMS, Tiling, warps_of
from neox_triton.launch import block_of, launch, like, rows


@frozen(eq=False)
class Norm:
    """The two kernels of a norm over rows.

    forward (x, other, y, total, *parameters, *saved, width, eps): of a row; where ADD, of x + other, which becomes the
    total. backward (grad, grad_total, total, dx, weight, *saved, *sums, num_rows, width, per_program, eps): of the rows
    of a program, whose share of the gradient of each parameter is a row of its sum; where ADD, grad_total is added to
    dx. saves: numbers of a row that the backward pass is given. parted: a program of the backward pass may have some of
    the columns, part `program_id(1)` of PARTS, each of PART columns; it sums over the others' too.
    """

    forward: Any
    backward: Any
    tiling: Tiling
    saves: int = 0
    parted: bool = True

    def __call__(
        self, x: Tensor, parameters: tuple[Tensor, ...], eps: float, residual: Tensor | None, **constants: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x, residual [..., width] -> as x; with a residual also the total."""
        return _Norm.apply(x, residual, self, eps, constants, *parameters)

    def parts(self, width: int, most: int) -> dict[str, int]:
        """How the columns are dealt in the backward pass, at most so many to a program."""
        if not self.parted:
            return {"BLOCK": block_of(width)}
        parts = triton.cdiv(width, most)
        part = triton.cdiv(width, parts)
        return {"PART": part, "PARTS": parts, "BLOCK": block_of(part)}


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        kernels: Norm,
        eps: float,
        constants: dict[str, Any],
        *parameters: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        flat, width = rows(x), x.shape[-1]
        parameters = tuple(each.contiguous() for each in parameters)
        total = flat if residual is None else torch.empty_like(flat, dtype=like(x, residual))
        other, y, block = flat if residual is None else rows(residual), torch.empty_like(total), block_of(width)
        saved = [torch.empty(len(flat), dtype=torch.float32, device=x.device) for _ in range(kernels.saves)]
        constants, tile = {**constants, "ADD": residual is not None}, kernels.tiling.of(flat)
        arguments = flat, other, y, total, *parameters, *saved, width, eps
        cut: dict[str, Any] = {"BLOCK": block, "warps": tile.warps or warps_of(block), "stages": tile.stages}
        launch(kernels.forward, (flat.shape[0],), *arguments, **constants, **cut)
        ctx.save_for_backward(total, *saved, *parameters)
        ctx.options = kernels, tile, eps, constants, x.dtype, None if residual is None else residual.dtype
        return y.view(x.shape) if residual is None else (y.view(x.shape), total.view(x.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_total: Tensor | None = None) -> tuple[Tensor | None, ...]:
        kernels, tile, eps, constants, dtype, residual_dtype = ctx.options
        total, *more = ctx.saved_tensors
        saved, parameters = more[: kernels.saves], more[kernels.saves :]
        num_rows, width = total.shape
        programs, dx = min(num_rows, PROGRAMS), torch.empty_like(total)
        sums = [torch.empty(programs, each.numel(), dtype=torch.float32, device=total.device) for each in parameters]
        above = total if grad_total is None else rows(grad_total)
        tensors = rows(grad), above, total, dx, parameters[0], *saved, *sums
        numbers = num_rows, width, triton.cdiv(num_rows, programs), eps
        cut = kernels.parts(width, tile.block)
        started = {"warps": tile.warps or warps_of(cut["BLOCK"]), "stages": tile.stages}
        grid = (programs, cut.get("PARTS", 1))
        launch(kernels.backward, grid, *tensors, *numbers, **started, **constants, **cut)
        dx = dx.view(grad.shape)
        added = None if residual_dtype is None else dx.to(residual_dtype)
        found = (each.sum(0).to(one.dtype).view_as(one) for each, one in zip(sums, parameters, strict=True))
        return (dx.to(dtype), added, None, None, None, *found)
