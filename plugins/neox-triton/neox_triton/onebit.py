"""Blocks of numbers to their signs and mean size and back, as 1-bit optimizers send them (arXiv:2102.02888)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import BLOCK_ELEMENTS, BLOCK_WARPS
from neox_triton.examples import Size, blocks
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch, rows


@triton.jit
def _compress(
    x_ptr, filled_ptr, packed_ptr, scale_ptr, num_rows, width, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """A row of the result is width / 8 bytes of signs and a scale; `scale_ptr` is where that of row 0 is."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    byte = tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    column = byte[None, :, None] * 8 + bit[None, None, :]
    inside = (column < width) & (row < num_rows)[:, None, None]
    x = tl.load(x_ptr + row[:, None, None] * width + column, mask=inside, other=0.0)
    signs = tl.where(x >= 0, 1, 0) << bit[None, None, :]
    held = (byte < width // 8)[None, :] & (row < num_rows)[:, None]
    tl.store(packed_ptr + row[:, None] * stride + byte[None, :], tl.sum(signs, 2).to(tl.uint8), mask=held)
    filled = tl.maximum(tl.load(filled_ptr + row, mask=row < num_rows, other=1.0), 1.0)
    scale = tl.div_rn(tl.sum(tl.sum(tl.abs(x), 2), 1), filled)
    tl.store(scale_ptr + row * (stride // 4), scale, mask=row < num_rows)


@triton.jit
def _decompress(packed_ptr, scale_ptr, y_ptr, num_rows, width, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (column < width) & (row < num_rows)
    byte = tl.load(packed_ptr + row * stride + column // 8, mask=inside, other=0).to(tl.int32)
    scale = tl.load(scale_ptr + row * (stride // 4), mask=row < num_rows, other=0.0)
    y = tl.where((byte >> (column % 8)) & 1 == 1, scale, -scale)
    tl.store(y_ptr + row * width + column, y, mask=inside)


def onebit_compress(values: Tensor, filled: Tensor) -> Tensor:
    """The op, as `neox_onebit.passes.compress`: fp32 [rows, block] -> uint8 [rows, block / 8 + 4].

    filled: fp32 [rows, 1]. block is a multiple of 32.
    """
    flat, width = rows(values), values.shape[1]
    stride = width // 8 + 4
    packed = torch.empty(flat.shape[0], stride, dtype=torch.uint8, device=values.device)
    scales = packed.view(torch.float32)[:, -1:]
    tensors = flat, filled.contiguous(), packed, scales
    _start(_compress, tensors, len(flat), width, stride)
    return packed


def onebit_decompress(packed: Tensor) -> Tensor:
    """The op, as `neox_onebit.passes.decompress`: uint8 [rows, block / 8 + 4] -> fp32 [rows, block]."""
    packed = packed.contiguous()
    num_rows, stride = packed.shape
    width = (stride - 4) * 8
    y = torch.empty(num_rows, width, dtype=torch.float32, device=packed.device)
    scales = packed.view(torch.float32)[:, -1:]
    _start(_decompress, (packed, scales, y), num_rows, width, stride)
    return y


def _start(kernel: Any, tensors: tuple[Tensor, ...], num_rows: int, width: int, stride: int) -> None:
    block = block_of(width)
    at_once = max(1, BLOCK_ELEMENTS // block)
    grid = (triton.cdiv(num_rows, at_once),)
    launch(kernel, grid, *tensors, num_rows, width, stride, ROWS=at_once, BLOCK=block, warps=BLOCK_WARPS)


def _compress_cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    """In steps of 1/8, so that a sum of sizes has no rounding: bytes of a scale are equal or not."""
    values, filled = blocks(device, size)
    yield (values * 8).round() / 8, filled


def _decompress_cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    values, _ = blocks(device, size)
    scales = values.abs().mean(1, keepdim=True).view(torch.uint8)
    signs = (torch.arange(values.shape[0] * 64, device=device) * 37 % 256).to(torch.uint8)
    yield (torch.cat((signs.view(-1, 64), scales), 1),)


COMPRESS = TritonKernel(onebit_compress, _compress_cases)
DECOMPRESS = TritonKernel(onebit_decompress, _decompress_cases)
