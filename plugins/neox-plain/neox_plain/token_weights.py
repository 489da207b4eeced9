"""What a batch counts for in a step whose batches have unequally many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups


def shares_of(sums: Sequence[Tensor], groups: Groups) -> Sequence[Tensor]:
    """What the mean loss of each batch is multiplied by, so that the mean of all, on all ranks, is that over tokens.

    sums: of the weights of the labels of each batch, scalars, equally many on every rank. Scalars on their device,
    without waiting for it. Collective over the data-parallel ranks.
    """
    counts = torch.stack(list(sums))
    total = counts.sum()
    if groups.data_size > 1:
        dist.all_reduce(total, group=groups.data)
    shares: Sequence[Tensor] = (counts * (len(sums) * groups.data_size) / total.where(total > 0, 1)).unbind()
    return shares
