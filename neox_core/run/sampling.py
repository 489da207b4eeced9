"""How the next token is chosen from its logits."""

from __future__ import annotations

import math

import torch
from attrs import field, frozen
from attrs import validators as v
from torch import Tensor


@frozen
class Sampling:
    """temperature: divides the logits; 0 takes the likeliest token. top_k: only the k likeliest; None: all.

    top_p: of those, only the likeliest whose probabilities add up to top_p (nucleus sampling, arXiv:1904.09751); the
    one that crosses the line is kept, so one always is. seed: of the draws.
    """

    temperature: float = field(default=0.8, validator=v.ge(0))
    top_k: int | None = field(default=None, validator=v.optional(v.ge(1)))
    top_p: float = field(default=0.95, validator=v.and_(v.gt(0), v.le(1)))
    seed: int = 0


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """[vocab] -> [vocab] in float64 on the CPU, adding up to 1: what a token is drawn from."""
    wide = logits.double().cpu()
    if sampling.temperature == 0:
        return torch.zeros_like(wide).index_fill_(0, wide.argmax(), 1.0)
    wide = wide / sampling.temperature
    ordered, ids = wide.sort(descending=True, stable=True)
    if sampling.top_k is not None:
        ordered[sampling.top_k :] = -math.inf
    ordered = ordered.softmax(0)
    before = ordered.cumsum(0) - ordered
    ordered = torch.where(before < sampling.top_p, ordered, 0.0)
    return torch.zeros_like(wide).scatter_(0, ids, ordered / ordered.sum())


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """An id, by the probabilities of `sampling`; `generator` is on the CPU, so a seed means the same on any device."""
    return int(torch.multinomial(probabilities(logits, sampling), 1, generator=generator))
