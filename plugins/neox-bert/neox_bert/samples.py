"""Samples made of the sentences of documents: [CLS] text [SEP], or [CLS] one piece [SEP] another [SEP]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from neox_causal_lm.api import split_documents

from neox_core.contracts.objective import SPLITS
from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_bert.settings import MaskedLMSettings
    from neox_bert.special import Special
    from neox_core.contracts import TokenSource
    from neox_core.contracts.objective import Datasets, Split
    from neox_core.plan.runfile import RunPlan

PREPARE = "make one with `neox data prepare --split-sentences`"


@frozen(eq=False)
class Sentences:
    """The documents of one split. first: the first sentence of each document, and the end, int64 [documents + 1].

    start: the number of the first of these documents in the dataset, which has `of` documents.
    """

    prefix: str
    source: TokenSource
    first: NDArray[np.int64]
    start: int = 0
    of: int = 0

    def read(self, start: int, end: int, vocab_size: int) -> list[int]:
        """The ids of sentences from `start` to before `end`. Raises DataError for an id that the model has not."""
        ids: list[int] = []
        for sentence in range(start, end):
            part = self.source.read(sentence)
            if len(part) and (part.min() < 0 or part.max() >= vocab_size):
                hint = "use the vocabulary that the dataset was prepared with"
                raise DataError(f"{self.prefix}: sentence {sentence}: an id is not among {vocab_size}", hint=hint)
            ids += part.tolist()
        return ids


def sentences_of(plan: RunPlan, split: Split, datasets: Datasets) -> Sentences:
    """Open the documents of a split. Raises DataError where there are none."""
    prefix = plan.data.prefix
    if datasets.streamed or prefix is None:
        raise DataError("sentences are read from a prepared dataset", hint=f"set data-path; {PREPARE}")
    source: Any = datasets.source(prefix)
    bounds = getattr(source, "bounds", None)
    bounds = np.arange(len(source.sizes) + 1) if bounds is None else np.asarray(bounds)
    mine = split_documents(len(bounds) - 1, plan.data.split)[SPLITS.index(split)]
    if not len(mine):
        share = ", ".join(f"{each:g}" for each in plan.data.split)
        raise DataError(f"{prefix}: none of its documents is for {split} (split {share})", hint="change split")
    first = bounds[mine.start : mine.stop + 1].astype(np.int64)
    found = Sentences(prefix, source, first, mine.start, len(bounds) - 1)
    if not source.sizes[found.first[0] : found.first[-1]].any():
        raise DataError(f"{prefix}: the documents for {split} hold no token", hint=PREPARE)
    return found


def chunks_of(sentences: Sentences, room: int, short: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """One pass over the documents as (first sentence, end, target length) of each sample, int64 [samples, 3].

    A sample has consecutive sentences of one document, until it has `target` tokens. room: tokens of a sample without
    special ones. short: the share of samples whose target is drawn from 2 to `room`.
    """
    made: list[tuple[int, int, int]] = []
    sizes = sentences.source.sizes
    for start, end in zip(sentences.first[:-1].tolist(), sentences.first[1:].tolist(), strict=True):
        target, first, held = _target(room, short, draw), start, 0
        for sentence, size in enumerate(sizes[start:end].tolist(), start):
            held += size
            if held and (held >= target or sentence == end - 1):
                made.append((first, sentence + 1, target))
                target, first, held = _target(room, short, draw), sentence + 1, 0
    return np.array(made, dtype=np.int64).reshape(-1, 3)


def _target(room: int, short: float, draw: np.random.Generator) -> int:
    return int(draw.integers(2, room + 1)) if short and draw.random() < short else room


@frozen(eq=False)
class SentenceSamples:
    """The samples of a split, a function of (seed, split, index). passes: the samples of each pass, shuffled."""

    sentences: Sentences
    passes: tuple[NDArray[np.int64], ...]
    pairs: str
    special: Special
    key: tuple[int, int]
    vocab_size: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.passes))

    def in_words(self) -> list[str]:
        number = f"{len(self.sentences.first) - 1:,} documents, {len(self.passes[0]):,} samples in a pass over them"
        return [f"{self.sentences.prefix}: {number}"]

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(first sentence, end, target, index): the index draws the second piece."""
        rows = [(*self._chunk(int(index)), int(index) if self.pairs != "none" else 0) for index in indices]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        """Copy sample `index` to `into` [seq_length + 1]; its last id is the class of the pair."""
        first, end, target = self._chunk(index)
        draw = np.random.default_rng([*self.key, 1, index])
        cls, sep, _, pad = self.special
        if self.pairs == "none":
            text = self.sentences.read(first, end, self.vocab_size)[: min(target, len(into) - 3)]
            ids, label = [cls, *text, sep], pad
        else:
            one, two, label = self._pair(first, end, min(target, len(into) - 4), draw)
            ids = [cls, *one, sep, *two, sep]
        into[:] = pad
        into[: len(ids)] = ids
        into[-1] = label

    def _chunk(self, index: int) -> tuple[int, int, int]:
        for each in self.passes:
            if index < len(each):
                first, end, target = each[index].tolist()
                return first, end, target
            index -= len(each)
        raise IndexError(index)

    def _pair(self, first: int, end: int, target: int, draw: np.random.Generator) -> tuple[list[int], list[int], int]:
        """Two pieces, neither empty where the document has two tokens, and their class."""
        sentences, vocab = self.sentences, self.vocab_size
        middle = int(draw.integers(first + 1, end)) if end - first > 1 else end
        one, two = sentences.read(first, middle, vocab), sentences.read(middle, end, vocab)
        if self.pairs == "order":
            if not (one and two):
                whole = one + two
                at = int(draw.integers(1, len(whole))) if len(whole) > 1 else 1
                one, two = whole[:at], whole[at:]
            swapped = int(draw.random() < 0.5)
            one, two = (two, one) if swapped else (one, two)
            return *_shortened(one, two, target, draw), swapped
        elsewhere = int(not (one and two) or draw.random() < 0.5)
        if elsewhere:
            one, two = (one or two), self._other(first, max(1, target - len(one)), draw)
        return *_shortened(one, two, target, draw), elsewhere

    def _other(self, first: int, wanted: int, draw: np.random.Generator) -> list[int]:
        """Text of another document than that of sentence `first`, where there is another."""
        bounds = self.sentences.first
        own = int(np.searchsorted(bounds, first, "right")) - 1
        document = int(draw.integers(len(bounds) - 1))
        if document == own:
            document = (own + 1) % (len(bounds) - 1)
        start, end = int(bounds[document]), int(bounds[document + 1])
        sentence = int(draw.integers(start, end)) if end > start else start
        ids: list[int] = []
        while sentence < end and len(ids) < wanted:
            ids += self.sentences.read(sentence, sentence + 1, self.vocab_size)
            sentence += 1
        return ids[:wanted]


def _shortened(one: list[int], two: list[int], room: int, draw: np.random.Generator) -> tuple[list[int], list[int]]:
    """Both within `room` tokens together: tokens are taken from the longer, from one of its ends at random."""
    while len(one) + len(two) > room:
        longer = one if len(one) > len(two) else two
        over = len(one) + len(two) - room
        surplus = min(over, max(1, abs(len(one) - len(two))))
        front = int(draw.binomial(surplus, 0.5))
        del longer[:front]
        del longer[len(longer) - (surplus - front) :]
    return one, two


def open_sentences(
    plan: RunPlan,
    settings: MaskedLMSettings,
    special: Special,
    split: Split,
    datasets: Datasets,
    vocab_size: int,
    rounds: Sequence[int],
) -> SentenceSamples:
    """The samples of a split: as many passes over its documents, each in an order of its own, as `rounds` wants."""
    sentences = sentences_of(plan, split, datasets)
    key = (plan.train.seed, SPLITS.index(split))
    room = plan.model.seq_length - (2 if settings.sentence_pairs == "none" else 3)
    passes: list[NDArray[np.int64]] = []
    while not passes or sum(map(len, passes)) < rounds[-1]:
        draw = np.random.default_rng([*key, 0, len(passes)])
        passes.append(draw.permutation(chunks_of(sentences, room, settings.short_seq_prob, draw)))
    return SentenceSamples(sentences, tuple(passes), settings.sentence_pairs, special, key, vocab_size)
