"""What the kernels of norms have in common: how they are started, and a residual that is added before the norm."""

from __future__ import annotations

from typing import Any

import torch
import triton
from attrs import frozen
from torch import Tensor

from neox_triton.choices import PROGRAMS, warps_of
from neox_triton.launch import block_of, launch, like, rows


@frozen(eq=False)
class Norm:
    """The two kernels of a norm over rows.

    forward (x, other, y, total, *parameters, width, eps): of a row; where ADD, of x + other, which becomes the total.
    backward (grad, grad_total, total, dx, weight, *sums, num_rows, width, per_program, eps): of the rows of a program,
    whose share of the gradient of each parameter is a row of its sum; where ADD, grad_total is added to dx.
    """

    forward: Any
    backward: Any

    def __call__(
        self, x: Tensor, parameters: tuple[Tensor, ...], eps: float, residual: Tensor | None, **constants: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x, residual [..., width] -> as x; with a residual also the total."""
        return _Norm.apply(x, residual, self, eps, constants, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        kernels: Norm,
        eps: float,
        constants: dict[str, bool],
        *parameters: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        flat, width = rows(x), x.shape[-1]
        total = flat if residual is None else torch.empty_like(flat, dtype=like(x, residual))
        other, y, block = flat if residual is None else rows(residual), torch.empty_like(total), block_of(width)
        constants = {**constants, "ADD": residual is not None, "BLOCK": block}
        arguments = flat, other, y, total, *parameters, width, eps
        launch(kernels.forward, (flat.shape[0],), *arguments, warps=warps_of(block), **constants)
        ctx.save_for_backward(total, *parameters)
        ctx.options = kernels, eps, constants, x.dtype, None if residual is None else residual.dtype
        return y.view(x.shape) if residual is None else (y.view(x.shape), total.view(x.shape))

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_total: Tensor | None = None) -> tuple[Tensor | None, ...]:
        total, *parameters = ctx.saved_tensors
        kernels, eps, constants, dtype, residual_dtype = ctx.options
        num_rows, width = total.shape
        programs, dx = min(num_rows, PROGRAMS), torch.empty_like(total)
        sums = [torch.empty(programs, each.numel(), dtype=torch.float32, device=total.device) for each in parameters]
        tensors = rows(grad), total if grad_total is None else rows(grad_total), total, dx, parameters[0], *sums
        numbers = num_rows, width, triton.cdiv(num_rows, programs), eps
        launch(kernels.backward, (programs,), *tensors, *numbers, warps=warps_of(constants["BLOCK"]), **constants)
        dx = dx.view(grad.shape)
        added = None if residual_dtype is None else dx.to(residual_dtype)
        found = (each.sum(0).to(one.dtype).view_as(one) for each, one in zip(sums, parameters, strict=True))
        return (dx.to(dtype), added, None, None, None, *found)
