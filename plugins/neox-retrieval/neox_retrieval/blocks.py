"""Documents cut into blocks: consecutive whole sentences, with the title of their document before them."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve, frozen
from neox_bert.api import Sentences, Special, sentences_of

from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import TokenSource
    from neox_core.contracts.objective import Datasets, Split
    from neox_core.plan.runfile import RunPlan


@frozen(eq=False)
class Titles:
    """One title for each document of a dataset. first: where the title of each starts, and the end."""

    prefix: str
    source: TokenSource
    first: NDArray[np.int64]

    def read(self, document: int, vocab_size: int) -> list[int]:
        """The ids of the title of a document. Raises DataError for an id that the model has not."""
        start, end = int(self.first[document]), int(self.first[document + 1])
        return Sentences(self.prefix, self.source, self.first).read(start, end, vocab_size)

    def sizes(self) -> NDArray[np.int64]:
        """The tokens of each title, int64 [documents]."""
        ends = np.concatenate([[0], np.cumsum(self.source.sizes, dtype=np.int64)])
        sizes: NDArray[np.int64] = ends[self.first[1:]] - ends[self.first[:-1]]
        return sizes


@frozen(eq=False)
class Blocks:
    """The blocks of the documents of a split. rows: (document, first sentence, end) of each, int64 [blocks, 3].

    A document is numbered as in the whole dataset. length: tokens of a block at most, its special ones included.
    """

    sentences: Sentences
    titles: Titles | None
    rows: NDArray[np.int64]
    length: int
    special: Special
    vocab_size: int

    def __len__(self) -> int:
        return len(self.rows)

    def title(self, block: int) -> list[int]:
        """The ids of the title, cut to half of the block; empty without titles."""
        document = int(self.rows[block, 0])
        if self.titles is None:
            return []
        return self.titles.read(document, self.vocab_size)[: self.length // 2]

    def filled(self, block: int) -> list[int]:
        """The sentences of a block that have tokens."""
        _, first, end = self.rows[block].tolist()
        found: list[int] = (first + np.flatnonzero(self.sentences.source.sizes[first:end])).tolist()
        return found

    def body(self, block: int, without: int | None = None) -> list[int]:
        """The ids of the sentences of a block. without: one of them that is left out."""
        _, first, end = self.rows[block].tolist()
        if without is None:
            return self.sentences.read(first, end, self.vocab_size)
        before = self.sentences.read(first, without, self.vocab_size)
        return before + self.sentences.read(without + 1, end, self.vocab_size)

    def tokens(self, block: int, without: int | None = None) -> NDArray[np.int64]:
        """[CLS] title [SEP] body [SEP], or without titles [CLS] body [SEP], filled up to `length`."""
        cls, sep, *_ = self.special
        head = [cls, *self.title(block), sep] if self.titles is not None else [cls]
        return filled_up([*head, *self.body(block, without)[: self.length - len(head) - 1], sep], self)

    def identity(self) -> str:
        """A text that changes when the blocks do: their places, the lengths of all sentences and titles."""
        digest = hashlib.sha256(f"{self.length} {self.titles is not None}".encode())
        digest.update(np.ascontiguousarray(self.rows, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(self.sentences.source.sizes, dtype="<i8").tobytes())
        if self.titles is not None:
            digest.update(np.ascontiguousarray(self.titles.sizes(), dtype="<i8").tobytes())
        return digest.hexdigest()


def filled_up(ids: list[int], blocks: Blocks, length: int | None = None) -> NDArray[np.int64]:
    """int64 [length]: `ids`, and behind them the token that fills a sample up. length None: of a block."""
    made = np.full(blocks.length if length is None else length, blocks.special.pad, dtype=np.int64)
    made[: len(ids)] = ids
    return made


def open_blocks(plan: RunPlan, split: Split, datasets: Datasets, special: Special, vocab_size: int) -> Blocks:
    """The blocks of a split. Raises DataError for documents that cannot be read, and titles that are not theirs."""
    model: Any = plan.model
    sentences = sentences_of(plan, split, datasets)
    titles = None if model.titles is None else _titles(model.titles, datasets, sentences)
    rows = rows_of(sentences, titles, model.block_length)
    return Blocks(sentences, titles, rows, model.block_length, special, vocab_size)


def all_blocks(plan: RunPlan, datasets: Datasets, special: Special, vocab_size: int) -> Blocks:
    """The blocks of all documents, in their order: what the index has."""
    whole = evolve(plan, data=evolve(plan.data, split=(1.0, 0.0, 0.0)))
    return open_blocks(whole, "train", datasets, special, vocab_size)


def _titles(prefix: str, datasets: Datasets, sentences: Sentences) -> Titles:
    source: Any = datasets.source(prefix)
    bounds = getattr(source, "bounds", None)
    first = np.arange(len(source.sizes) + 1) if bounds is None else np.asarray(bounds)
    if len(first) - 1 != sentences.of:
        message = f"{prefix}: has {len(first) - 1:,} titles, and {sentences.prefix} has {sentences.of:,} documents"
        hint = "make both from the same lines: `neox data prepare --json-keys text,title`"
        raise DataError(message, hint=hint)
    return Titles(prefix, source, first.astype(np.int64))


def rows_of(sentences: Sentences, titles: Titles | None, length: int) -> NDArray[np.int64]:
    """(document, first sentence, end) of each block: as many whole sentences as fit, at least one that has tokens."""
    sizes, made = sentences.source.sizes, list[tuple[int, int, int]]()
    of_titles = None if titles is None else titles.sizes()
    bounds = sentences.first.tolist()
    for number, (start, end) in enumerate(pairwise(bounds), sentences.start):
        room = length - 2 if of_titles is None else length - 3 - min(int(of_titles[number]), length // 2)
        first, held = start, 0
        for sentence, size in enumerate(sizes[start:end].tolist(), start):
            if held and held + size > room:
                made.append((number, first, sentence))
                first, held = sentence, 0
            held += size
        if held:
            made.append((number, first, end))
    return np.array(made, dtype=np.int64).reshape(-1, 3)
