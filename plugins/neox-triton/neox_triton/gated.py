"""GeGLU and SwiGLU: `value * f(gate)`, value and gate side by side (Shazeer 2020, arXiv:2002.05202).

f is GELU, exact by erf, or SiLU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import GEGLU as GEGLU_TILES
from neox_triton.choices import SWIGLU as SWIGLU_TILES
from neox_triton.examples import Size, gated_input
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, rows


@triton.jit
def _share(gate, GELU: tl.constexpr):
    """What f multiplies the gate by."""
    if GELU:
        return 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:  # noqa: RET505  a constant decides, when the kernel is compiled
        return tl.sigmoid(gate)


@triton.jit
def _forward(x_ptr, y_ptr, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x_ptr + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    y = value * gate * _share(gate, GELU)
    tl.store(y_ptr + row * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad_ptr, x_ptr, dx_ptr, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = row * 2 * width + column
    grad = tl.load(grad_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + place + width, mask=inside, other=0.0).to(tl.float32)
    share = _share(gate, GELU)
    if GELU:
        slope = share + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    else:
        slope = share * (1.0 + gate * (1.0 - share))
    tl.store(dx_ptr + place, (grad * gate * share).to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dx_ptr + place + width, (grad * value * slope).to(dx_ptr.dtype.element_ty), mask=inside)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by_gelu: bool) -> Tensor:
        flat, width = rows(x), x.shape[-1] // 2
        y = torch.empty(flat.shape[0], width, dtype=x.dtype, device=x.device)
        _start(_forward, flat, (flat, y), by_gelu)
        ctx.save_for_backward(flat)
        ctx.options = by_gelu, x.shape
        return y.view(*x.shape[:-1], width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (flat,) = ctx.saved_tensors
        by_gelu, shape = ctx.options
        dx = torch.empty_like(flat)
        _start(_backward, flat, (rows(grad), flat, dx), by_gelu)
        return dx.view(shape), None


def _start(kernel: Any, x: Tensor, tensors: tuple[Tensor, ...], by_gelu: bool) -> None:
    """x: rows of the op's argument."""
    width = x.shape[1] // 2
    tile = (GEGLU_TILES if by_gelu else SWIGLU_TILES).of(x)
    block = min(tile.block, block_of(width))
    grid = (x.shape[0], triton.cdiv(width, block))
    cut: dict[str, Any] = {"BLOCK": block, "warps": tile.warps, "stages": tile.stages}
    launch(kernel, grid, *tensors, width, GELU=by_gelu, **cut)


def geglu(x: Tensor) -> Tensor:
    """The op, as `neox_activations.gated.geglu`: x [..., 2 * width] -> [..., width]."""
    return _Gated.apply(x, True)


def swiglu(x: Tensor) -> Tensor:
    """The op, as `neox_activations.gated.swiglu`: x [..., 2 * width] -> [..., width]."""
    return _Gated.apply(x, False)


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    yield (gated_input(dtype, device, size),)


GEGLU = TritonKernel(geglu, _cases, tiling=GEGLU_TILES)
SWIGLU = TritonKernel(swiglu, _cases, tiling=SWIGLU_TILES)
