"""The loops over all numbers of a model: on a CPU compiled, one pass over memory each; elsewhere, torch's operations.

A block is some numbers of a parameter, a multiple of 32; packed it is its signs, eight to a byte, least significant bit
first, and its mean size: C[x] = sign(x) * |x|_1 / d (section 4 of arXiv:2202.06009), the multiple of the signs that is
nearest to x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from neox_core.kernels.compile_c import native_for

_SCALE = 4
"""Bytes of a scale, after the signs."""
_SOURCE = Path(__file__).with_name("passes.cpp")

_OPS = ("onebit_compress", "onebit_decompress")
Kernels = Mapping[str, Callable[..., Tensor]]
"""By op, what was chosen instead of a reference; of these two it takes the place of `compress` and `decompress`."""
REFERENCES: Kernels = MappingProxyType({})


def pack(blocks: Tensor, used: Tensor, kernels: Kernels = REFERENCES) -> Tensor:
    """fp32 [rows, block] -> uint8 [rows, block / 8 + 4]; what is lost by it stays in `blocks`.

    used: fp32 [rows, 1], how many numbers of a block count. Those after them become 0; a block of none stays as it is,
    and what is packed for it is 0.
    """
    rows, block = blocks.shape
    if kernels.keys().isdisjoint(_OPS):
        packed = torch.empty(rows, block // 8 + _SCALE, dtype=torch.uint8, device=blocks.device)
        if _compiled("pack", (blocks, used, packed), c_long(rows), c_long(block)):
            return packed
    none = used == 0
    counts = (torch.arange(block, device=blocks.device) < used) | none  # choosing the short rows waits for a GPU
    blocks *= counts
    packing: Callable[..., Tensor] = kernels.get("onebit_compress", compress)
    unpacking: Callable[..., Tensor] = kernels.get("onebit_decompress", decompress)
    packed = packing(blocks, used).masked_fill_(none, 0)
    blocks -= unpacking(packed)
    blocks *= counts
    return packed


def unpack(packed: Tensor, onto: Tensor, kernels: Kernels = REFERENCES) -> None:
    """Add to `onto`, fp32 [rows, block], the mean over the ranks of uint8 [ranks, rows, block / 8 + 4]."""
    sizes = map(c_long, (len(packed), *onto.shape))
    if "onebit_decompress" in kernels or not _compiled("unpack", (packed, onto), *sizes):
        unpacking: Callable[..., Tensor] = kernels.get("onebit_decompress", decompress)
        onto += unpacking(packed.flatten(0, 1)).view(-1, *onto.shape).mean(0)


def move(weight: Tensor, momentum: Tensor, variance: Tensor, kept: float, rate: float, root: float, eps: float) -> None:
    """Do weight <- kept * weight - rate * momentum / (root * sqrt(variance) + eps)."""
    numbers = map(c_float, (kept, rate, root, eps))
    if not _compiled("move", (weight, momentum, variance), c_long(weight.numel()), *numbers):
        weight.mul_(kept).addcdiv_(momentum, variance.sqrt().mul_(root).add_(eps), value=-rate)


def compress(values: Tensor, used: Tensor) -> Tensor:
    """The op: fp32 [rows, block] -> uint8 [rows, block / 8 + 4]; numbers that do not count are 0."""
    return pack_signs(values, (values.abs().sum(1, keepdim=True) / used.clamp(min=1)).float())


def pack_signs(values: Tensor, scales: Tensor) -> Tensor:
    """fp32 [rows, block] and the scale of each, [rows, 1] -> uint8 [rows, block / 8 + 4]."""
    bits = (values >= 0).view(len(values), -1, 8).to(torch.uint8) << _places(values.device)
    return torch.cat([bits.sum(-1, dtype=torch.uint8), scales.view(torch.uint8)], dim=1)


def decompress(packed: Tensor) -> Tensor:
    """The op: the numbers that arrive, uint8 [rows, block / 8 + 4] -> fp32 [rows, block]."""
    scales = packed[:, -_SCALE:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    positive = (packed[:, :-_SCALE].unsqueeze(-1) >> _places(packed.device)) & 1
    return torch.where(positive.flatten(1).bool(), scales, -scales)


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _compiled(name: str, tensors: tuple[Tensor, ...], *numbers: Any) -> bool:
    """Whether the compiled loop has done it."""
    library = native_for(_SOURCE, *tensors)
    if library is None:
        return False
    loop: Callable[..., Any] = getattr(library, name)
    loop(*(c_void_p(each.data_ptr()) for each in tensors), *numbers, c_int(torch.get_num_threads()))
    return True
