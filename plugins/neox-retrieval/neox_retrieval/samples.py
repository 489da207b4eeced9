"""Samples of a sentence and of the block that it was taken from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from neox_core.contracts.objective import SPLITS
from neox_core.errors import DataError
from neox_retrieval.blocks import Blocks, filled_up, open_blocks

if TYPE_CHECKING:
    from neox_bert.api import Special
    from numpy.typing import NDArray

    from neox_core.contracts.objective import Datasets, Split
    from neox_core.plan.runfile import RunPlan
    from neox_retrieval.objective_section import InverseClozeSettings


@frozen(eq=False)
class ClozeSamples:
    """The samples of a split, a function of (seed, split, index): [CLS] query [SEP] filled up, and then a block.

    kept: the blocks that are trained on. orders: places in `kept`, in another order in each pass over them.
    stays: the share of samples whose block keeps the query.
    """

    blocks: Blocks
    kept: NDArray[np.int64]
    orders: tuple[NDArray[np.int64], ...]
    stays: float
    query_length: int
    key: tuple[int, int]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.orders) * len(self.kept)

    def in_words(self) -> list[str]:
        sentences = self.blocks.sentences
        number = f"{len(sentences.first) - 1:,} documents, {len(self.kept):,} blocks in a pass over them"
        return [f"{sentences.prefix}: {number}"]

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(document, first sentence, end, index): the index draws the query."""
        rows = self.blocks.rows[[self.block(int(each)) for each in indices]].reshape(-1, 3)
        return np.concatenate([rows, indices.astype(np.int64)[:, None]], axis=1)

    def block(self, index: int) -> int:
        """The block of a sample."""
        turn, place = divmod(index, len(self.kept))
        return int(self.kept[self.orders[turn][place]])

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        """Copy sample `index` to `into` [seq_length + 1], whose last id only fills up."""
        block, (query, stays) = self.block(index), self.query(index)
        blocks, length = self.blocks, self.query_length
        cls, sep, _, pad = blocks.special
        ids = blocks.sentences.read(query, query + 1, blocks.vocab_size)[: length - 2]
        into[:length] = filled_up([cls, *ids, sep], blocks, length)
        into[length:-1] = blocks.tokens(block, None if stays else query)
        into[-1] = pad

    def query(self, index: int) -> tuple[int, bool]:
        """The sentence that is the query of a sample, and whether its block keeps it."""
        draw = np.random.default_rng([*self.key, 1, index])
        sentences = self.blocks.filled(self.block(index))
        query = sentences[int(draw.integers(len(sentences)))]
        return query, len(sentences) == 1 or bool(draw.random() < self.stays)


def open_samples(
    plan: RunPlan,
    settings: InverseClozeSettings,
    special: Special,
    split: Split,
    datasets: Datasets,
    vocab_size: int,
    rounds: Sequence[int],
) -> ClozeSamples:
    """The samples of a split: as many passes over its blocks, each in an order of its own, as `rounds` wants."""
    model: Any = plan.model
    blocks = open_blocks(plan, split, datasets, special, vocab_size)
    kept = np.flatnonzero(trained_on(blocks, settings))
    if not len(kept):
        message = f"{blocks.sentences.prefix}: no document for {split} has a block of two sentences"
        hint = "prepare it with `neox data prepare --split-sentences`, or set use-one-sent-docs: true"
        raise DataError(message, hint=hint)
    key = (plan.train.seed, SPLITS.index(split))
    passes = max(1, -(-rounds[-1] // len(kept)))
    orders = tuple(np.random.default_rng([*key, 0, each]).permutation(len(kept)) for each in range(passes))
    return ClozeSamples(blocks, kept, orders, settings.query_in_block_prob, model.query_length, key)


def trained_on(blocks: Blocks, settings: InverseClozeSettings) -> NDArray[np.bool_]:
    """Whether each block is trained on: those of one sentence have nothing left without it, see the settings."""
    if settings.use_one_sent_docs:
        return np.ones(len(blocks), dtype=np.bool_)
    sentences, rows = blocks.sentences, blocks.rows
    has = np.concatenate([[0], np.cumsum(sentences.source.sizes > 0)])
    within = has[rows[:, 2]] - has[rows[:, 1]]
    documents = rows[:, 0] - sentences.start
    of_document = has[sentences.first[documents + 1]] - has[sentences.first[documents]]
    enough: NDArray[np.bool_] = of_document > 1 if settings.query_in_block_prob == 1 else within > 1
    return enough
