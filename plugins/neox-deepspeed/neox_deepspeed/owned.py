"""ZeRO 1 for an optimizer that looks at whole parameters: each data-parallel rank owns some and steps only those.

torch's ZeroRedundancyOptimizer deals parameters too, but knows no fp32 copies of weights in bf16: each rank would keep
those of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups

_BUCKET = 64 << 20
"""Bytes of weights that are sent at once, and that the copies for sending take."""


class Owned(torch.optim.Optimizer):
    """What DeepSpeed steps in place of `optimizer`, which is left this rank's share of the parameters.

    owned: each weight of the share with what `optimizer` steps for it: the weight, or an fp32 copy of a narrower one.
    The groups of `optimizer` stay as many as on any other rank, though one may be empty.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Groups) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        super().__init__(parameters, {"lr": 0.0})
        self._optimizer, self._group = optimizer, groups.data
        self._dealt = deal(parameters, groups.data_size)
        stepped = {id(weight): _stepped(weight) for weight in self._dealt[groups.data_rank]}
        self.owned = [(weight, stepped[id(weight)]) for weight in parameters if id(weight) in stepped]
        for group in optimizer.param_groups:
            group["params"] = [stepped[id(weight)] for weight in group["params"] if id(weight) in stepped]

    @torch.no_grad()
    def step(self) -> None:
        """Step the share with gradients that are averaged over the ranks, then hand each rank's weights to the others.

        Waits for no device.
        """
        copies = [(weight, copy) for weight, copy in self.owned if copy is not weight]
        for weight, copy in copies:
            copy.grad = None if weight.grad is None else weight.grad.to(copy.dtype)
        self._optimizer.step()
        for weight, copy in copies:
            copy.grad = None
            weight.copy_(copy)
        for owner, weights in enumerate(self._dealt if len(self._dealt) > 1 else ()):
            if weights:
                dist._broadcast_coalesced(self._group, [weight.detach() for weight in weights], _BUCKET, owner)  # noqa: SLF001


def deal(parameters: Iterable[Any], ranks: int) -> list[list[Any]]:
    """The parameters of each rank, as equal in elements as whole ones can be: the largest first, to who has least."""
    dealt: list[list[Any]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for parameter in sorted(parameters, key=lambda each: -each.numel()):
        least = loads.index(min(loads))
        dealt[least].append(parameter)
        loads[least] += parameter.numel()
    return dealt


def _stepped(weight: Tensor) -> Tensor:
    return weight if weight.dtype == torch.float32 else nn.Parameter(weight.detach().float())
