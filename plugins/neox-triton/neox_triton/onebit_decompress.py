"""Signs and a size to blocks of numbers, as 1-bit optimizers receive them (arXiv:2102.02888)."""

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
from neox_triton.launch import launch


@triton.jit
def _decompress(packed_ptr, scale_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    byte = tl.load(packed_ptr + row * stride + column // 8).to(tl.int32)
    scale = tl.load(scale_ptr + row * (stride // 4))
    tl.store(y_ptr + row * BLOCK + column, tl.where((byte >> (column % 8)) & 1 == 1, scale, -scale))


def onebit_decompress(packed: Tensor) -> Tensor:
    """The op, as `neox_onebit.exchange.decompress`: uint8 [rows, block / 8 + 4] -> fp32 [rows, block]."""
    packed = packed.contiguous()
    num_rows, stride = packed.shape
    y = torch.empty(num_rows, (stride - 4) * 8, dtype=torch.float32, device=packed.device)
    scales = packed.view(torch.float32)[:, -1:]
    launch(_decompress, (num_rows,), packed, scales, y, stride, BLOCK=y.shape[1], warps=COLUMN_WARPS)
    return y


def _cases(dtype: torch.dtype, device: torch.device, large: bool) -> Iterator[tuple[Any, ...]]:
    values, _ = blocks(device, large)
    scales = values.abs().mean(1, keepdim=True).view(torch.uint8)
    signs = (torch.arange(values.shape[0] * 64, device=device) * 37 % 256).to(torch.uint8)
    yield (torch.cat((signs.view(-1, 64), scales), 1),)


KERNEL = TritonKernel(onebit_decompress, _cases)
