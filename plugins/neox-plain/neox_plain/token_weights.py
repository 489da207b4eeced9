"""What a batch counts for in a step whose batches have unequally many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups
    from neox_core.parallel.row import Documents


def token_weights(batches: Sequence[Tensor], documents: Documents, groups: Groups) -> Sequence[Tensor]:
    """What the mean loss of each batch is multiplied by, so that the mean of all, on all ranks, is that over tokens.

    batches: int64 [micro_batch, seq + 1], equally many on every rank. Scalars on the device of the batches,
    without waiting for it. Collective over the data-parallel ranks.
    """
    counts = torch.stack([documents.counted(batch[:, :-1]) for batch in batches])
    total = counts.sum()
    if groups.data_size > 1:
        dist.all_reduce(total, group=groups.data)
    weights: Sequence[Tensor] = (counts * (len(batches) * groups.data_size) / total.clamp(min=1)).unbind()
    return weights
