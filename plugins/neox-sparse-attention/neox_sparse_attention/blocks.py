"""What several layouts are made of. All masks are bool [query blocks, key blocks] of one head."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from neox_gpt.api import LayoutShape
    from torch import Tensor


def lower(num_blocks: int) -> Tensor:
    """What is not ahead."""
    return torch.ones(num_blocks, num_blocks, dtype=torch.bool).tril()


def windows(sizes: Sequence[int], num_blocks: int) -> Tensor:
    """Windows side by side, each block seeing its own; the last size repeats."""
    window = torch.empty(num_blocks, dtype=torch.int64)
    first = number = 0
    while first < num_blocks:
        size = sizes[min(number, len(sizes) - 1)]
        window[first : first + size] = number
        first, number = first + size, number + 1
    return window[:, None] == window[None, :]


def sliding(width: int, num_blocks: int) -> Tensor:
    """A window around each block: `width // 2` blocks on either side and itself."""
    reach = width // 2
    return torch.ones(num_blocks, num_blocks, dtype=torch.bool).tril(reach).triu(-reach)


def global_blocks(starts: Sequence[int], ends: Sequence[int] | None, num_blocks: int) -> Tensor:
    """Those in the ranges from `starts` to `ends`, not included; without ends `starts` alone: bool [blocks]."""
    chosen = torch.zeros(num_blocks, dtype=torch.bool)
    for start, end in zip(starts, ends or [start + 1 for start in starts], strict=True):
        chosen[start:end] = True
    return chosen


def add_random(one: Tensor, count: int, shape: LayoutShape, *, per_head: bool) -> Tensor:
    """[heads, blocks, blocks]: `one` for each head, with `count` more blocks in each row, or as many as are left.

    The draw follows from (seed, layer, head), or (seed, layer) where all heads have one layout.
    """
    if count == 0:
        return one.expand(shape.num_heads, -1, -1)
    free = ~one & lower(shape.num_blocks) if shape.causal else ~one
    number = free.cumsum(1, dtype=torch.int32)  # of a free block in its row, from 1 on
    drawn = one.repeat(shape.num_heads if per_head else 1, 1, 1)
    for head, layout in enumerate(drawn):
        chosen = _subsets(number[:, -1].contiguous(), count, _generator(shape, head))
        row, place = chosen.nonzero(as_tuple=True)
        layout[row, torch.searchsorted(number, chosen)[row, place]] = True
    return drawn.expand(shape.num_heads, -1, -1)


def _subsets(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """For each of int32 [rows] `sizes` as many different numbers from 1 to it as `count`, drawn: int32 [rows, count].

    All subsets are equally likely (R. Floyd's algorithm, CACM 30:9, 1987). Where there are not so many, it is all of
    them, and zeros.
    """
    chosen = torch.zeros(sizes.numel(), count, dtype=torch.int32)
    for step in range(count):
        largest = sizes - (count - 1 - step)
        share = torch.rand(sizes.numel(), generator=generator, dtype=torch.float64)
        number = (share * largest).int() + 1
        chosen[:, step] = torch.where((chosen == number[:, None]).any(1), largest, number)
    every = torch.arange(1, count + 1, dtype=torch.int32)
    every = every.where(every <= sizes[:, None], 0)
    return chosen.where(sizes[:, None] > count, every)


def _generator(shape: LayoutShape, head: int) -> torch.Generator:
    name = f"sparse layout/{shape.seed}/{shape.layer}/{head}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)
    return torch.Generator().manual_seed(seed)
