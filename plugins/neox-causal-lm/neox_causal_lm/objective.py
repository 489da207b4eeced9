"""The objective `causal-lm`: every token of a sample is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neox_causal_lm.samples import Samples, open_samples
from neox_causal_lm.streams import Streams, open_streams
from neox_core.contracts.objective import Loss

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.contracts.objective import Batch, Datasets, Run, Split
    from neox_core.plan.runfile import RunPlan


IGNORED = -100
"""The label of a token that does not count."""


class NextToken:
    """The loss of a causal language model, for an objective that makes samples of its own."""

    def inputs(self, batch: Batch) -> Tensor:
        return batch.tokens[:, :-1]

    def weights(self, batch: Batch) -> Tensor | None:
        return None if batch.documents is None else batch.documents.counts(self.inputs(batch))

    def labels(self, batch: Batch) -> Tensor:
        """The next tokens, int64 [batch, seq]; -100 where none counts."""
        labels, counts = batch.tokens[:, 1:], self.weights(batch)
        return labels if counts is None else labels.masked_fill(~counts, IGNORED)

    def loss(self, run: Run, batch: Batch) -> Loss:
        return Loss(run(self.inputs(batch)).cross_entropy(self.labels(batch)))


class CausalLM(NextToken):
    """Documents are laid end to end and cut into samples, in the order of GPT-NeoX."""

    def __init__(self, plan: RunPlan, settings: None = None) -> None:
        self._plan = plan

    def samples(self, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]) -> Samples | Streams:
        if datasets.streamed:
            return open_streams(self._plan, split, datasets, vocab_size)
        return open_samples(self._plan, split, datasets, vocab_size, rounds)
