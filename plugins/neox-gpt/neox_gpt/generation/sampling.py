"""How the next token is chosen from its logits."""

from __future__ import annotations

import math

import torch
from attrs import field, frozen
from attrs import validators as v
from torch import Tensor


@frozen
class Sampling:
    """temperature: divides the logits; 0 takes the most likely token. top_k: only the k most likely; None: all.

    top_p: of those, only the most likely whose probabilities add up to top_p (nucleus sampling, arXiv:1904.09751); the
    token that crosses the limit is kept, so at least one is. seed: of the random generator.
    """

    temperature: float = field(default=0.8, validator=v.ge(0))
    top_k: int | None = field(default=None, validator=v.optional(v.ge(1)))
    top_p: float = field(default=0.95, validator=v.and_(v.gt(0), v.le(1)))
    seed: int = 0


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities from which a token is drawn: [vocab] -> [vocab] in float64 on the CPU, with sum 1."""
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
    """Draw an id; `generator` is on the CPU, so a seed gives the same ids on any device."""
    return int(torch.multinomial(probabilities(logits, sampling), 1, generator=generator))
