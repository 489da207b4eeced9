"""The loops over all numbers of a model: compiled on a CPU, each one pass over memory; torch's operations elsewhere.

A block is a multiple of 32 numbers of a parameter. Packed, it is their signs, eight to a byte, least significant bit
first, and a scale, their mean absolute value: C[x] = sign(x) * |x|_1 / d (section 4 of arXiv:2202.06009), the multiple
of the signs that is nearest to x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from neox_kernels.api import native_for
from torch import Tensor

_SCALE = 4
"""Bytes of the scale, which follows the signs."""
_SOURCE = Path(__file__).with_name("passes.cpp")

_OPS = ("onebit_compress", "onebit_decompress")
Kernels = Mapping[str, Callable[..., Tensor]]
"""By op, the kernel that replaces `compress` or `decompress`."""
REFERENCES: Kernels = MappingProxyType({})


def pack(blocks: Tensor, used: Tensor, kernels: Kernels = REFERENCES) -> Tensor:
    """Pack blocks, and leave in them what packing loses. Returns uint8 [rows, block / 8 + 4].

    blocks: fp32 [rows, block], changed in place
    used: fp32 [rows, 1], how many numbers of each block count. The others become 0. A block where none counts is left
        unchanged and packed as 0.
    kernels: by op, what replaces `compress` and `decompress`
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
    """Add the mean over the ranks of packed blocks.

    packed: uint8 [ranks, rows, block / 8 + 4]
    onto: fp32 [rows, block], changed in place
    kernels: by op, what replaces `decompress`
    """
    sizes = map(c_long, (len(packed), *onto.shape))
    if "onebit_decompress" in kernels or not _compiled("unpack", (packed, onto), *sizes):
        unpacking: Callable[..., Tensor] = kernels.get("onebit_decompress", decompress)
        onto += unpacking(packed.flatten(0, 1)).view(-1, *onto.shape).mean(0)


def move(weight: Tensor, momentum: Tensor, variance: Tensor, kept: float, rate: float, root: float, eps: float) -> None:
    """Set weight to kept * weight - rate * momentum / (root * sqrt(variance) + eps), in place."""
    numbers = map(c_float, (kept, rate, root, eps))
    if not _compiled("move", (weight, momentum, variance), c_long(weight.numel()), *numbers):
        weight.mul_(kept).addcdiv_(momentum, variance.sqrt().mul_(root).add_(eps), value=-rate)


def compress(values: Tensor, used: Tensor) -> Tensor:
    """The op `onebit_compress`. Returns uint8 [rows, block / 8 + 4].

    values: fp32 [rows, block], 0 where a number does not count
    used: fp32 [rows, 1], how many numbers of each block count
    """
    return pack_signs(values, (values.abs().sum(1, keepdim=True) / used.clamp(min=1)).float())


def pack_signs(values: Tensor, scales: Tensor) -> Tensor:
    """Pack signs with given scales. Returns uint8 [rows, block / 8 + 4].

    values: fp32 [rows, block]
    scales: fp32 [rows, 1]
    """
    bits = (values >= 0).view(len(values), -1, 8).to(torch.uint8) << _places(values.device)
    return torch.cat([bits.sum(-1, dtype=torch.uint8), scales.view(torch.uint8)], dim=1)


def decompress(packed: Tensor) -> Tensor:
    """The op `onebit_decompress`. Returns fp32 [rows, block], each number plus or minus its block's scale.

    packed: uint8 [rows, block / 8 + 4]
    """
    scales = packed[:, -_SCALE:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    positive = (packed[:, :-_SCALE].unsqueeze(-1) >> _places(packed.device)) & 1
    return torch.where(positive.flatten(1).bool(), scales, -scales)


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _compiled(name: str, tensors: tuple[Tensor, ...], *numbers: Any) -> bool:
    """Run the compiled loop; False where there is none for these tensors."""
    library = native_for(_SOURCE, *tensors)
    if library is None:
        return False
    loop: Callable[..., Any] = getattr(library, name)
    loop(*(c_void_p(each.data_ptr()) for each in tensors), *numbers, c_int(torch.get_num_threads()))
    return True
