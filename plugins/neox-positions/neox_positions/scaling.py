"""Frequencies of rotary positions for sequences longer than those that a model was first trained on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from neox_positions.settings import RotarySettings


def scaled(frequencies: Tensor, settings: RotarySettings) -> Tensor:
    """Turns per token, fp32 [turned / 2], as the settings have them; `dynamic` follows from a sequence instead.

    linear: all divided by the factor (arXiv:2306.15595). llama3: those of long waves (arXiv:2407.21783, and Llama's
    code). yarn: those that turn few times in the original length, with a ramp between (arXiv:2309.00071, section 3.2).
    """
    factor, original = settings.rotary_scaling_factor or 1.0, settings.rotary_original_positions or 1
    if settings.rotary_scaling == "linear":
        return frequencies / factor
    if settings.rotary_scaling == "llama3":
        low, high = settings.rotary_low_freq_factor, settings.rotary_high_freq_factor
        turns = original * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    elif settings.rotary_scaling == "yarn":
        first, last = _ramp(2 * len(frequencies), settings)
        index = torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device)
        kept = 1 - ((index - first) / (last - first)).clamp(0, 1)
    else:
        return frequencies
    return frequencies * kept + frequencies / factor * (1 - kept)


def _ramp(turned: int, settings: RotarySettings) -> tuple[float, float]:
    """Between which frequencies yarn's ramp lies."""
    original = settings.rotary_original_positions or 1

    def index(turns: float) -> float:
        return turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(settings.rotary_emb_base))

    first, last = index(settings.rotary_beta_fast), index(settings.rotary_beta_slow)
    if settings.rotary_truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, turned - 1)
    return first, last + (0.001 if first == last else 0)


def dynamic_base(positions: Tensor, turned: int, settings: RotarySettings) -> Tensor:
    """The base for each sequence, which grows with its length beyond the original one: [(batch, 1,) 1] of fp32.

    positions: int64 [seq] or [batch, seq]. The "dynamic NTK" scaling of transformers.
    """
    factor, original = settings.rotary_scaling_factor or 1.0, settings.rotary_original_positions or 1
    length = (positions.amax(-1, keepdim=True) + 1).clamp(min=original).float()[..., None]
    return settings.rotary_emb_base * (factor * length / original - (factor - 1)) ** (turned / (turned - 2))


def attention_factor(settings: RotarySettings) -> float:
    """What yarn multiplies cosines and sines by: its given factor, or 0.1 ln(factor) + 1."""
    if settings.rotary_scaling != "yarn":
        return 1.0
    if settings.rotary_attention_factor is not None:
        return settings.rotary_attention_factor

    def grown(by: float) -> float:
        return max(1.0, 0.1 * by * math.log(settings.rotary_scaling_factor or 1.0) + 1.0)

    both = settings.rotary_mscale, settings.rotary_mscale_all_dim
    return grown(both[0]) / grown(both[1]) if both[0] and both[1] else grown(1.0)
