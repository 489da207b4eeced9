"""Which experts a token is sent to, with which weights, and how even that is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

ROUNDS, TOLERANCE, SMALL = 3, 1e-4, 1e-8
"""Of Sinkhorn's algorithm, as GPT-NeoX has them (ea7aefd, megatron/model/router.py)."""


class Choice(NamedTuple):
    """Of each token its experts, int64 [tokens, k], and their weights, [tokens, k]."""

    experts: Tensor
    weights: Tensor


def choose(logits: Tensor, k: int, *, sinkhorn: bool, balanced: bool) -> Choice:
    """logits: [tokens, experts], fp32 or wider. sinkhorn: the router; balanced: in training, where it assigns all
    tokens together. The weights are probabilities; those of sinkhorn with one expert a token are sigmoids.
    """
    scores = logits.sigmoid() if sinkhorn and k == 1 else logits.softmax(-1)
    if sinkhorn and balanced:
        experts = assignment(logits).topk(k, -1).indices
        return Choice(experts, scores.gather(-1, experts))
    weights, experts = scores.topk(k, -1)
    return Choice(experts, weights)


@torch.no_grad()
def assignment(logits: Tensor) -> Tensor:
    """How strongly each token is assigned to each expert, so that all experts get equal parts: [tokens, experts].

    GPT-NeoX stops early where a round changes little; here the other rounds then change nothing, without a wait. The
    largest logit is taken off, which changes no assignment and keeps the exponentials finite.
    """
    largest = logits.max().clamp(min=-60)
    cost, unit = (logits - largest).exp(), (-largest).exp()
    tokens, experts = cost.shape
    of_tokens = torch.ones_like(cost[:, 0])
    least = torch.finfo(cost.dtype).tiny
    of_experts = 1 / (experts * cost.sum(0)).clamp(min=least)
    done = torch.zeros_like(of_experts[0], dtype=torch.bool)
    for _ in range(ROUNDS):
        rows = 1 / tokens / ((of_experts * cost).sum(1) + SMALL)
        columns = 1 / experts / ((rows[:, None] * cost).sum(0) + SMALL * unit).clamp(min=least)
        change = (of_experts - columns).abs().mean() * unit
        of_tokens, of_experts = torch.where(done, of_tokens, rows), torch.where(done, of_experts, columns)
        done = done | (change < TOLERANCE)
    return of_experts * cost * of_tokens[:, None]


def load_balance(logits: Tensor, experts: Tensor) -> Tensor:
    """Number of experts * sum over them of (tokens sent to it / tokens) * (its mean probability): k if all are equal.

    Fedus et al. 2021 (arXiv:2101.03961), equations 4 to 6, and for k above 1 as Mixtral in transformers.
    """
    count = logits.shape[-1]
    shares = F.one_hot(experts, count).to(logits.dtype).sum(1).mean(0)
    return count * (shares * logits.softmax(-1).mean(0)).sum()


def z_loss(logits: Tensor) -> Tensor:
    """Zoph et al. 2022 (arXiv:2202.08906), equation 5."""
    return logits.logsumexp(-1).square().mean()
