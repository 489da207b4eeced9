"""The objective `causal-lm`: every token of a sample is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from neox_causal_lm.passes import Passes
from neox_causal_lm.samples import Samples, open_samples
from neox_causal_lm.streams import Streams, open_streams
from neox_core.contracts.objective import Loss
from neox_core.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from neox_causal_lm.plugin import CausalLMSettings
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

    def __init__(self, plan: RunPlan, settings: CausalLMSettings | None = None) -> None:
        self._plan, self._z_loss = plan, 0.0 if settings is None else settings.z_loss
        self._per_pass = None if settings is None else settings.samples_per_pass

    def loss(self, run: Run, batch: Batch) -> Loss:
        """The cross-entropy, and in training z-loss times the mean square of the logarithm of softmax's denominator."""
        if not self._z_loss or not torch.is_grad_enabled():
            return super().loss(run, batch)
        labels = self.labels(batch)
        scores, counts = run(self.inputs(batch)).scores(labels), labels != IGNORED
        number = counts.sum().clamp(min=1)
        cross_entropy = -scores.log_prob.sum() / number
        z = (scores.log_sum.square() * counts).sum() / number
        return Loss(cross_entropy + self._z_loss * z, {"cross_entropy": cross_entropy.detach(), "z": z.detach()})

    def samples(
        self, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]
    ) -> Samples | Passes | Streams:
        if datasets.streamed:
            if self._per_pass is not None:
                raise DataError("samples-per-pass needs counted samples", hint="remove it, or prepare the text")
            return open_streams(self._plan, split, datasets, vocab_size)
        if split == "train" and self._per_pass is not None and rounds[-1]:
            return Passes(open_samples(self._plan, split, datasets, vocab_size, (0,)), self._per_pass, rounds[-1])
        return open_samples(self._plan, split, datasets, vocab_size, rounds)
