"""What a check trains with: the next token as the objective, and AdamW of torch as the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neox_core.contracts.objective import IGNORED, Loss

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.contracts.objective import Batch, Run


class NextToken:
    """The mean cross-entropy of the labels that count: more in some micro-batches than in others."""

    def __init__(self, plan: Any, settings: Any) -> None:
        self.plan = plan

    def samples(self, split: str, datasets: Any, vocab_size: int, rounds: Any) -> Any:
        raise AssertionError("a check makes its own batches")

    def inputs(self, batch: Batch) -> Tensor:
        return batch.tokens[:, :-1]

    def weights(self, batch: Batch) -> Tensor | None:
        return (labels_of(batch.tokens) != IGNORED).float()

    def loss(self, run: Run, batch: Batch) -> Loss:
        mean = run(self.inputs(batch)).cross_entropy(labels_of(batch.tokens))
        return Loss(mean, {"double": 2 * mean.detach()})


def labels_of(tokens: Tensor) -> Tensor:
    """The labels of samples [batch, seq + 1], of which about a quarter do not count."""
    labels = tokens[:, 1:]
    return labels.masked_fill(labels % 4 == 0, IGNORED)


def adam(groups: Any, settings: Any) -> torch.optim.Optimizer:
    """AdamW with a large eps: where a gradient is 0 but for rounding, its step is 0 too."""
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-5)
