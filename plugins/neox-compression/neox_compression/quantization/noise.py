"""Random numbers of a step and a layer, which any rank draws again."""

from __future__ import annotations

from zlib import crc32

import torch
from torch import Tensor

from neox_core.parallel.sample_keys import MASK32, mix


def noise_at(step: int, name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """Evenly distributed numbers from -0.5 to 0.5: fp32 of `shape`. name: of the layer whose whole weight has it."""
    start = torch.full((), step & MASK32, dtype=torch.int64, device=device)
    key = mix(mix(start) ^ crc32(name.encode()))
    places = torch.arange(shape.numel(), dtype=torch.int64, device=device)
    drawn = mix(mix((places & MASK32) ^ key) ^ (places >> 32))
    return ((drawn.double() + 0.5) / 2**32 - 0.5).float().reshape(shape)
