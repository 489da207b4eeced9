"""Softmax of attention scores with scale and mask: two ops that fused kernels of GPT-NeoX's kind compute."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """The op `scaled_upper_triang_masked_softmax`: scores [..., queries, keys] -> probabilities of the same dtype.

    The last query belongs to the last key, and a query sees its own key and those before it.
    """
    queries, keys = scores.shape[-2:]
    index = torch.arange(keys, device=scores.device)
    return masked_softmax(scores, index > index[keys - queries :, None], scale)


def masked_softmax(scores: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The op `scaled_masked_softmax`: bool `mask` is True where a key is not seen, and broadcasts to the scores.

    A query that sees nothing has probabilities 0. Computed in fp32 or better.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale
    probs = wide.masked_fill(mask, -math.inf).softmax(-1)
    return probs.masked_fill(mask, 0.0).to(scores.dtype)
