"""Blocks of numbers to their signs and mean size, as 1-bit optimizers send them (arXiv:2102.02888)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neox_triton.choices import COLUMN_WARPS
from neox_triton.examples import blocks
from neox_triton.kernel import TritonKernel
from neox_triton.launch import launch, rows


@triton.jit
def _compress(x_ptr, filled_ptr, packed_ptr, scale_ptr, stride, BLOCK: tl.constexpr):
    """A row of the result is BLOCK / 8 bytes of signs and a scale; `scale_ptr` is where that of row 0 is."""
    row = tl.program_id(0).to(tl.int64)
    byte = tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    x = tl.load(x_ptr + row * BLOCK + byte[:, None] * 8 + bit[None, :])
    signs = tl.where(x >= 0, 1, 0) << bit[None, :]
    tl.store(packed_ptr + row * stride + byte, tl.sum(signs, 1).to(tl.uint8))
    filled = tl.maximum(tl.load(filled_ptr + row), 1.0)
    scale = tl.sum(tl.sum(tl.abs(x), 1), 0) / filled
    tl.store(scale_ptr + row * (stride // 4), scale)


def onebit_compress(values: Tensor, filled: Tensor) -> Tensor:
    """The op, as `neox_onebit.exchange.compress`: fp32 [rows, block] -> uint8 [rows, block / 8 + 4].

    filled: fp32 [rows, 1]. block is a power of two, 32 or more.
    """
    flat, block = rows(values), values.shape[1]
    stride = block // 8 + 4
    packed = torch.empty(flat.shape[0], stride, dtype=torch.uint8, device=values.device)
    scales = packed.view(torch.float32)[:, -1:]
    launch(
        _compress, (flat.shape[0],), flat, filled.contiguous(), packed, scales, stride, BLOCK=block, warps=COLUMN_WARPS
    )
    return packed


def _cases(dtype: torch.dtype, device: torch.device, large: bool) -> Iterator[tuple[Any, ...]]:
    yield blocks(device, large)


KERNEL = TritonKernel(onebit_compress, _cases)
