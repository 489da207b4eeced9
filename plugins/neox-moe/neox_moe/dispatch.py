"""Tokens in the order of their experts, and back: permutations, so two runs give the same bits on a GPU too."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Dispatch(NamedTuple):
    """Where each of the [tokens * k] choices lies once they are sorted by expert; the k of a token are neighbours.

    order: the choices, sorted. place: of each choice, in that order. ends: int32 [experts], the place after the last
    one of each expert. counts: of the choices of each expert, dropped ones too. kept: bool [tokens, k], what no expert
    drops; None: nothing is dropped.
    """

    order: Tensor
    place: Tensor
    ends: Tensor
    counts: Tensor
    kept: Tensor | None = None


def dispatch(experts: Tensor, num_experts: int, capacity: int | None = None) -> Dispatch:
    """experts: int64 [tokens, k]. capacity: of an expert, in tokens; it takes the first ones, and drops the rest."""
    chosen = experts.flatten()
    order, place = places(chosen)
    counts = (chosen[:, None] == torch.arange(num_experts, device=chosen.device)).sum(0)
    if capacity is None:
        return Dispatch(order, place, counts.cumsum(0).int(), counts)
    before = counts.cumsum(0) - counts
    kept = place - before[chosen] < capacity
    order, place = places(torch.where(kept, chosen, num_experts))  # what is dropped comes last
    return Dispatch(order, place, counts.clamp(max=capacity).cumsum(0).int(), counts, kept.view_as(experts))


def places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The order that sorts `chosen`, equal ones as they came, and its inverse."""
    order = chosen.argsort(stable=True)
    return order, torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def send(x: Tensor, to: Dispatch) -> Tensor:
    """[tokens, hidden] -> [tokens * k, hidden], sorted by expert."""
    result: Tensor = _Send.apply(x, to.order, to.place)
    return result


def fetch(rows: Tensor, to: Dispatch) -> Tensor:
    """[tokens * k, hidden], sorted by expert -> the same, the k of a token side by side."""
    return permute(rows, to.place, to.order)


def permute(rows: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
    """`rows[places]`, of a permutation whose inverse is known."""
    result: Tensor = _Permute.apply(rows, places, inverse)
    return result


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.k = len(order) // max(len(x), 1)
        return x[order // ctx.k]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grad[place].unflatten(0, (-1, ctx.k)).sum(1), None, None


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[places]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad[inverse], None, None
