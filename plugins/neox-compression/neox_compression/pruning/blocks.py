"""Which blocks of the weights of all layers stay: the masks of snip_momentum, as DeepSpeed 0.19.6 has them made.

It calls Neural Compressor of Intel, whose scores are those of SNIP (arXiv:1810.02340) with a memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neox_compression.pruning.pattern import Pattern

MOST_PRUNED = 0.98
"""Share of the blocks of a layer that may be zero, whatever the others are."""


def reduced_scores(pattern: Pattern, scores: Tensor) -> Tensor:
    """The mean score of what each block would lose: [blocks]. scores: fp32 [outputs, inputs]."""
    grouped = _grouped(pattern, scores)
    if pattern.zeros is None:
        return grouped.mean(-1).flatten()
    return (grouped.sort(-1).values[..., : pattern.zeros].sum(-1) / pattern.inputs).flatten()


def mask_of_blocks(pattern: Pattern, scores: Tensor, pruned: Tensor) -> Tensor:
    """0 where a block that `pruned`, bool [blocks], names has its zeros, else 1: [outputs, inputs]."""
    grouped = _grouped(pattern, scores)
    gone = pruned.view(*grouped.shape[:2], 1).expand(grouped.shape)
    if pattern.zeros is not None:
        places = grouped.sort(dim=-1, stable=True).indices[..., : pattern.zeros]
        gone = gone & torch.zeros_like(gone).scatter(-1, places, value=True)
    return (
        (~gone)
        .to(scores.dtype)
        .view(-1, scores.shape[1] // pattern.inputs, pattern.rows, pattern.inputs)
        .transpose(1, 2)
        .reshape(scores.shape)
    )


def _grouped(pattern: Pattern, scores: Tensor) -> Tensor:
    """[rows of blocks, blocks in a row, numbers of a block]."""
    outputs, inputs = scores.shape
    cut = scores.reshape(outputs // pattern.rows, pattern.rows, inputs // pattern.inputs, pattern.inputs)
    return cut.transpose(1, 2).flatten(2)


def pruned_blocks(reduced: list[Tensor], pattern: Pattern, density: float) -> list[Tensor]:
    """Of each layer the blocks that are set to zero, bool [blocks], so that `density` of all weights stays.

    reduced: of each layer the scores of its blocks. Those with the lowest scores of all layers go, of those that stay
    at least in their layer.
    """
    share = (1 - density) / pattern.most_zeros
    count = int(sum(len(each) for each in reduced) * share + 1e-9)
    open_to_it = []
    for each in reduced:
        most = int(len(each) * min(1.0, MOST_PRUNED / pattern.most_zeros))
        allowed = torch.zeros(len(each), dtype=torch.bool, device=each.device)
        allowed[each.sort(stable=True).indices[:most]] = True
        open_to_it.append(allowed)
    scores = torch.cat([torch.where(ok, each, torch.inf) for ok, each in zip(open_to_it, reduced, strict=True)])
    gone = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    gone[scores.sort(stable=True).indices[:count]] = True
    return [part & ok for part, ok in zip(gone.split([len(each) for each in reduced]), open_to_it, strict=True)]


def density_at(step: int, first: int, last: int, stride: int, target: float) -> float | None:
    """The share of weights that stays from a step on: it falls exponentially; None: this step changes nothing."""
    if not first <= step <= last or (step - first) % stride:
        return None
    return float(target ** ((step - first) // stride / max(1, (last - first) // stride)))
