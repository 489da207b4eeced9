"""Tensors rounded to few bits, as DeepSpeed 0.19.6 rounds them (MoQ, and Yao et al. 2022, arXiv:2206.01859)."""

from __future__ import annotations

import torch
from torch import Tensor


def round_weight(
    weight: Tensor, bits: int, groups: int = 1, *, symmetric: bool = True, noise: Tensor | float = 0.0
) -> Tensor:
    """A whole weight [outputs, inputs] rounded to 2**bits values, in each of `groups` equal parts of its numbers.

    One bit leaves a sign, two leave a sign or zero, both with one size for each part. noise: [outputs, inputs] from
    -0.5 to 0.5, which makes rounding stochastic; it is for 3 bits and more, as is `symmetric` False.
    """
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32)).reshape(groups, -1)
    if bits == 1:
        found = wide.sign() * wide.abs().mean(1, keepdim=True)
    elif bits == 2:
        found = _ternary(wide)
    else:
        moved = noise.reshape(groups, -1) if isinstance(noise, Tensor) else noise
        low, high = wide.amin(1, keepdim=True), wide.amax(1, keepdim=True)
        found = round_in_range(wide, low, high, bits, symmetric=symmetric, noise=moved)
    return found.reshape(weight.shape).to(weight.dtype)


def round_in_range(
    x: Tensor, low: Tensor, high: Tensor, bits: int, *, symmetric: bool = True, noise: Tensor | float = 0.0
) -> Tensor:
    """`x` rounded to one of 2**bits values between `low` and `high`, which broadcast to it; 0 where both are 0.

    symmetric: zero is a value, and the largest size of the two is the range on both sides.
    """
    steps = 2**bits
    scale = 2 * torch.maximum(low.abs(), high.abs()) / steps if symmetric else (high - low) / steps
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    if symmetric:
        found = (x / safe + noise).round().clamp(-(steps // 2), steps // 2 - 1) * safe
        return torch.where(scale > 0, found, torch.zeros_like(found))
    zero = (low / safe).round() * safe
    found = ((x - zero) / safe + noise).round().clamp(0, steps - 1) * safe + zero
    return torch.where(scale > 0, found, low.expand_as(found))


def _ternary(wide: Tensor) -> Tensor:
    """[groups, numbers]: the sign of what is above 0.7 of the mean size, times the mean size of that."""
    above = wide.abs() > 0.7 * wide.abs().mean(1, keepdim=True)
    size = (wide.abs() * above).sum(1, keepdim=True) / above.sum(1, keepdim=True).clamp(min=1)
    return wide.sign() * above * size


def bits_at(step: int, start: int, target: int, period: int) -> int:
    """The bits of weights `step` steps after quantization began: one less every `period` steps."""
    return max(target, start - step // period)


def whole_share(step: int, start: int, target: int, period: int, growth: float) -> float:
    """The share of the whole weight in the blend: 1 when quantization begins or the bits fall, then less each step."""
    falls = min(start - target, step // period)
    return max(0.0, 1.0 - growth * (step - falls * period))
