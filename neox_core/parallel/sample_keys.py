"""Random numbers of a sample: a function of (seed, index of the sample in the run), on any rank.

A model hashes a sample's key together with a position, by `mix`: so every layout of ranks, every micro-batch
and every recomputation draws the same numbers, and a checkpoint needs no generator state for them.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF


def sample_keys(seed: int, first: int, count: int, device: torch.device | str) -> Tensor:
    """One key for each of the samples first, first + 1, ... of a run: int64 [count], below 2**32."""
    salt = int.from_bytes(hashlib.sha256(f"dropout/{seed}".encode()).digest()[:4], "little")
    index = torch.arange(first, first + count, dtype=torch.int64, device=device)
    return mix(mix((index & MASK32) ^ salt) ^ (index >> 32))


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit numbers held in int64, each output bit depending on each input bit.

    C. Wellons found multipliers and shifts by search ("hash prospector"); below 2**31 they keep products within int64.
    """
    x = ((x >> 16) ^ x) * 0x21F0AAAD & MASK32
    x = ((x >> 15) ^ x) * 0x735A2D97 & MASK32
    return (x >> 15) ^ x
