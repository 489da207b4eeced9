"""The reference of `contracts.objective.Outputs`: from logits of a whole batch, in plain torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen
from torch import Tensor
from torch.nn import functional

from neox_core.contracts.objective import IGNORED, Scores


@frozen(eq=False)
class WholeLogits:
    """What a pass gives that has computed all logits, [batch, seq, vocab]."""

    all_logits: Tensor
    auxiliary_losses: Mapping[str, Tensor] = field(factory=dict)
    metrics: Mapping[str, Tensor] = field(factory=dict)

    def cross_entropy(self, labels: Tensor) -> Tensor:
        logits = self._wide().flatten(0, 1)
        total = functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / (labels != IGNORED).sum().clamp(min=1)

    def scores(self, labels: Tensor) -> Scores:
        logits = self._wide()
        log_sum, own = logits.logsumexp(-1), logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return Scores((own - log_sum).masked_fill(labels == IGNORED, 0.0), logits.mean(-1) - log_sum, log_sum)

    def logits(self) -> Tensor:
        return self.all_logits

    def _wide(self) -> Tensor:
        return self.all_logits.to(torch.promote_types(self.all_logits.dtype, torch.float32))
