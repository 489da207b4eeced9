"""The objective `inverse-cloze`: the block that a sentence was taken from, among all blocks of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neox_bert.api import special_tokens
from torch import Tensor
from torch.nn import functional

from neox_core.contracts.objective import Loss
from neox_retrieval.samples import ClozeSamples, open_samples

if TYPE_CHECKING:
    from neox_core.contracts.objective import Batch, Datasets, Run, Split
    from neox_core.plan.runfile import RunPlan
    from neox_retrieval.objective_section import InverseClozeSettings


class InverseCloze:
    """A micro-batch of each data-parallel rank makes one softmax: its blocks are the wrong answers of each other."""

    def __init__(self, plan: RunPlan, settings: InverseClozeSettings) -> None:
        self._plan, self._settings = plan, settings
        model: Any = plan.model
        self._special = special_tokens(model)

    def samples(self, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]) -> ClozeSamples:
        return open_samples(self._plan, self._settings, self._special, split, datasets, vocab_size, rounds)

    def inputs(self, batch: Batch) -> Tensor:
        """The query and the block of each sample, int64 [batch, seq]."""
        return batch.tokens[:, :-1]

    def weights(self, batch: Batch) -> None:
        """All samples count alike."""

    def loss(self, run: Run, batch: Batch) -> Loss:
        """The cross-entropy of a query's own block, in nats. Collective, as the outputs of a retriever are."""
        outputs: Any = run(self.inputs(batch))
        products, own = outputs.similarities()
        detached = products.detach()
        own_product = detached.gather(1, own[:, None])
        behind = (~(detached < own_product)).sum(1)  # its own among them; a nan is never right
        hits = {f"top{k}_acc": (behind <= k).float().mean() for k in self._settings.report_topk_accuracies}
        return Loss(functional.cross_entropy(products, own), hits)
