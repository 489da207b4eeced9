"""T5's relative position bias."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neox_positions.none import NoPosition

if TYPE_CHECKING:
    from neox_gpt.api import PositionShape, ScoreBias

    from neox_positions.settings import RelativeSettings


class RelativeBias(NoPosition):
    """Adds to each score a trained number that depends on the head and the bucket of the distance (Raffel et al. 2020,
    arXiv:1910.10683, the one-directional form of a decoder). One table [buckets, heads] serves all layers.

    The first half of the buckets are the distances 0, 1, 2 ...; the others widen in geometric steps up to
    rpe_max_distance, from which on all share the last bucket. As in T5 the bias is added as it is.
    """

    def __init__(self, shape: PositionShape, settings: RelativeSettings) -> None:
        super().__init__(shape, settings)
        self.max_distance = settings.rpe_max_distance
        self.weight = nn.Parameter(torch.empty(settings.rpe_num_buckets, shape.num_heads))

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The bias of each distance up to the largest that is told apart, fp32 or better: [max_distance + 1, heads]."""
        distance = torch.arange(self.max_distance + 1, device=positions.device)
        rows = F.embedding(buckets(distance, self.weight.shape[0], self.max_distance), self.weight)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))

    def score_bias(self, prepared: Any) -> ScoreBias:
        def bias(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            distance = (query - key).clamp(0, self.max_distance)
            result: Tensor = prepared[distance, head]
            return result

        return bias


def buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """int64 distances, 0 and more -> the bucket of each, 0 to num_buckets - 1."""
    exact = num_buckets // 2
    share = (distance.clamp(min=1).double() / exact).log() / math.log(max_distance / exact)
    coarse = exact + (share * (num_buckets - exact)).long().clamp(min=0)
    return torch.where(distance < exact, distance, coarse.clamp(max=num_buckets - 1))
