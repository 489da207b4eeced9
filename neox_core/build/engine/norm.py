"""The norm of a gradient whose parts are on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups


def clip(parameters: Sequence[nn.Parameter], largest: float, groups: Groups) -> Tensor:
    """Scale the gradients so that the norm of all of them is `largest` at most; 0: leave them. Returns the norm before.

    Collective over the ranks that hold one copy of the model: a parameter that is cut counts with all its parts, one
    that several of them hold whole counts once.
    """
    if groups.model is None:
        return nn.utils.clip_grad_norm_(parameters, largest or float("inf"), foreach=True)
    mine = [each.grad for each in parameters if each.grad is not None and counts_here(each, groups)]
    square = nn.utils.get_total_norm(mine, foreach=True).square().to(parameters[0].device)
    dist.all_reduce(square, group=groups.model)
    norm = square.sqrt()
    if largest:
        nn.utils.clip_grads_with_norm_(parameters, largest, norm, foreach=True)
    return norm


def counts_here(parameter: nn.Parameter, groups: Groups) -> bool:
    """Whether this rank is the one to count `parameter`, or this part of it, among those of one copy of the model.

    The two marks are those that DeepSpeed's optimizers look at: `tensor_model_parallel`, set by `build.model`, of a
    parameter that is cut, and `ds_pipe_replicated` of a tied one that an earlier stage holds as well.
    """
    if getattr(parameter, "ds_pipe_replicated", False):
        return False
    return groups.tensor.rank == 0 or bool(getattr(parameter, "tensor_model_parallel", False))
