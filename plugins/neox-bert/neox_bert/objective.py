"""The objective `masked-lm`: hidden tokens, and what two pieces of text have to do with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from neox_bert.samples import SentenceSamples, open_sentences
from neox_bert.special import special_tokens
from neox_core.contracts.objective import IGNORED, Loss
from neox_core.parallel.sample_keys import mix

if TYPE_CHECKING:
    from neox_bert.settings import MaskedLMSettings
    from neox_core.contracts.objective import Batch, Datasets, Run, Split
    from neox_core.plan.runfile import RunPlan

_CHOOSE, _HOW, _OTHER = 0x51ED270B, 0x2545F491, 0x1B873593
"""Different random numbers of one place."""


class MaskedLM:
    """The last id of a sample is not a token but the class of its two pieces: 0 or 1."""

    draws = True

    def __init__(self, plan: RunPlan, settings: MaskedLMSettings) -> None:
        self._plan, self._settings = plan, settings
        model: Any = plan.model
        self._special = special_tokens(model)
        tokenizer: Any = None if plan.data.tokenizer is None else plan.data.tokenizer.make()
        self._ids: int = model.padded_vocab_size if tokenizer is None else tokenizer.vocab_size
        self._paired = settings.sentence_pairs != "none"

    def samples(self, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]) -> SentenceSamples:
        return open_sentences(self._plan, self._settings, self._special, split, datasets, vocab_size, rounds)

    def inputs(self, batch: Batch) -> Tensor:
        """The tokens of which some are hidden, int64 [batch, seq]."""
        tokens, chosen = batch.tokens[:, :-1], self._chosen(batch)
        how = self._random(batch, _HOW) % 10
        other = self._random(batch, _OTHER) % self._ids
        hidden = torch.where(how < 8, self._special.mask, torch.where(how == 8, other, tokens))
        return torch.where(chosen, hidden, tokens)

    def weights(self, batch: Batch) -> Tensor:
        return self._chosen(batch)

    def loss(self, run: Run, batch: Batch) -> Loss:
        """The cross-entropy of the chosen tokens, and that of the pairs, each sample by its number of chosen tokens."""
        chosen = self._chosen(batch)
        outputs: Any = run(self.inputs(batch))
        labels = batch.tokens[:, :-1].masked_fill(~chosen, IGNORED)
        if hasattr(outputs, "at"):  # an encoder's: most tokens need no logits
            most = max(1, int(labels.shape[1] * self._settings.mask_prob + 0.5))
            places = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :most]
            masked = outputs.at(places).cross_entropy(labels.gather(1, places))
        else:
            masked = outputs.cross_entropy(labels)
        if not self._paired:
            return Loss(masked)
        logits, label = outputs.pairs, batch.tokens[:, -1].clamp(0, 1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        counts = chosen.sum(1)
        share = counts / counts.sum().clamp(min=1)
        pair = (functional.cross_entropy(logits, label, reduction="none") * share).sum()
        right = ((logits.argmax(1) == label) * share).sum()
        return Loss(masked + pair, {"masked": masked.detach(), "pairs": pair.detach(), "pairs_right": right.float()})

    def _random(self, batch: Batch, which: int) -> Tensor:
        """For each token a number of 32 bits, int64 [batch, seq], which follows from the sample and the place."""
        assert batch.keys is not None  # noqa: S101  since `draws`
        places = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
        return mix(mix(batch.keys[:, None] ^ which) ^ mix(places + 1))

    def _chosen(self, batch: Batch) -> Tensor:
        """The tokens that are predicted, bool [batch, seq]."""
        tokens = batch.tokens[:, :-1]
        able = torch.ones_like(tokens, dtype=torch.bool)
        for special in self._special:
            able = able & (tokens != special)
        if batch.documents is not None and (counts := batch.documents.counts(tokens)) is not None:
            able = able & counts
        number = (able.sum(1, keepdim=True) * self._settings.mask_prob + 0.5).floor().clamp(min=1)
        drawn = self._random(batch, _CHOOSE).masked_fill(~able, 1 << 32)
        place = drawn.argsort(dim=1, stable=True).argsort(dim=1)
        return able & (place < number)
