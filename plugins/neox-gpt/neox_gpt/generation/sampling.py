"""How the next token is chosen from its logits."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from attrs import field, frozen
from attrs import validators as v
from torch import Tensor


@frozen
class Sampling:
    """What shapes the probabilities, in this order.

    repetition_penalty: logits of tokens that the text already has are divided by it where positive, else multiplied
    (arXiv:1909.05858); 1 leaves them. temperature: divides the logits; 0 takes the most likely token. top_k: only the k
    most likely; None: all. top_p: of those, only the most likely whose probabilities add up to top_p (nucleus sampling,
    arXiv:1904.09751); the token that crosses the limit is kept, so at least one is. min_p: of those, only the ones that
    are at least min_p times as likely as the most likely (arXiv:2407.01082). seed: of the random generator.
    """

    temperature: float = field(default=0.8, validator=[v.ge(0), v.lt(math.inf)])
    top_k: int | None = field(default=None, validator=v.optional(v.ge(1)))
    top_p: float = field(default=0.95, validator=v.and_(v.gt(0), v.le(1)))
    seed: int = 0
    min_p: float = field(default=0.0, validator=v.and_(v.ge(0), v.le(1)))
    repetition_penalty: float = field(default=1.0, validator=[v.gt(0), v.lt(math.inf)])


def probabilities(logits: Tensor, sampling: Sampling, seen: Collection[int] = ()) -> Tensor:
    """The probabilities from which a token is drawn: [vocab] -> [vocab] in float64 on the CPU, with sum 1.

    seen: the ids that the text has.
    """
    wide = logits.double().cpu()
    if sampling.repetition_penalty != 1 and seen:
        ids = torch.tensor(sorted(seen))
        of_seen, penalty = wide[ids], sampling.repetition_penalty
        wide = wide.index_copy(0, ids, torch.where(of_seen > 0, of_seen / penalty, of_seen * penalty))
    if sampling.temperature == 0:
        return torch.zeros_like(wide).index_fill_(0, wide.argmax(), 1.0)
    wide = wide / sampling.temperature
    ordered, ids = wide.sort(descending=True, stable=True)
    if sampling.top_k is not None:
        ordered[sampling.top_k :] = -math.inf
    ordered = ordered.softmax(0)
    before = ordered.cumsum(0) - ordered
    kept = (before < sampling.top_p) & (ordered >= sampling.min_p * ordered[0])
    ordered = torch.where(kept, ordered, 0.0)
    return torch.zeros_like(wide).scatter_(0, ids, ordered / ordered.sum())


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator, seen: Collection[int] = ()) -> int:
    """Draw an id, see `probabilities`; `generator` is on the CPU, so a seed gives the same ids on any device."""
    return int(torch.multinomial(probabilities(logits, sampling, seen), 1, generator=generator))
