"""The gradient of a step, whose parts are on several ranks: its norm, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_plain.spread import Spread, spread_of

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups


def fill(parameters: Iterable[Tensor]) -> None:
    """Give what no loss depends on a gradient of zeros, as an average over ranks does: so it has a state to resume."""
    for each in parameters:
        if each.grad is None:
            each.grad = torch.zeros_like(each)


def drop(parameters: Iterable[Tensor]) -> None:
    """Let go of gradients, so that an optimizer makes no update."""
    for each in parameters:
        each.grad = None


def clip(
    parameters: Sequence[nn.Parameter],
    scaled: Sequence[Tensor],
    largest: float,
    groups: Groups,
    *,
    own: bool = False,
    counts: Mapping[Tensor, float] | None = None,
) -> Tensor:
    """Scale gradients so that the norm of those of `parameters` is `largest` at most; 0: leave them. Returns that norm.

    Collective over the ranks that hold one copy of the model: a parameter that is cut counts with all its parts, one
    that several of them hold whole counts once. Of parameters that are spread over data-parallel ranks, collective over
    these too. own: each data-parallel rank has gradients of its own, and the norm is the root mean square of theirs:
    collective over these too. scaled: those whose gradients this rank's optimizer uses. counts: how often one of
    `parameters` counts, where that is not once.
    """
    parts = {id(found): found for each in parameters if (found := spread_of(each)) is not None}
    if not (counts or own or parts) and groups.model is None and parameters[0].dtype == torch.float32:
        norm = nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None], foreach=True)
        nn.utils.clip_grads_with_norm_(scaled, largest or float("inf"), norm, foreach=True)
        return norm

    def square_of(spread: Spread | None) -> Tensor:
        gradients = [
            each.grad * counts[each] ** 0.5 if counts and each in counts else each.grad
            for each in parameters
            if each.grad is not None and spread_of(each) is spread and counts_here(each, groups)
        ]
        return _square(gradients, parameters[0].device)

    square = square_of(None)
    for spread in parts.values():
        of_parts = square_of(spread)
        dist.all_reduce(of_parts, group=spread.group)
        square = square + of_parts
    if groups.model is not None:
        dist.all_reduce(square, group=groups.model)
    if own:
        dist.all_reduce(square, group=groups.data)
        square /= groups.data_size
    norm = square.sqrt()
    if largest:
        nn.utils.clip_grads_with_norm_(scaled, largest, norm, foreach=True)
    return norm


def _square(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """The square of their norm, in fp32 where they are not."""
    if all(each.dtype == torch.float32 for each in gradients):
        return nn.utils.get_total_norm(gradients, foreach=True).square().to(device)
    return torch.stack([torch.linalg.vector_norm(each, dtype=torch.float32) for each in gradients]).square().sum()


def counts_here(parameter: nn.Parameter, groups: Groups) -> bool:
    """Whether this rank is the one to count `parameter`, or this part of it, among those of one copy of the model.

    The two marks are those that DeepSpeed's optimizers look at: `tensor_model_parallel`, set by `build.model`, of a
    parameter that is cut, and `ds_pipe_replicated` of a tied one that an earlier stage holds as well.
    """
    if getattr(parameter, "ds_pipe_replicated", False):
        return False
    return groups.tensor.rank == 0 or bool(getattr(parameter, "tensor_model_parallel", False))


def copy_marks(parameter: nn.Parameter, copy: Tensor) -> None:
    """Let `counts_here` say of a copy what it says of the parameter."""
    for mark in ("ds_pipe_replicated", "tensor_model_parallel"):
        setattr(copy, mark, getattr(parameter, mark, False))
