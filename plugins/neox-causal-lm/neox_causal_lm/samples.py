"""The samples of a split: their datasets, their order, and their tokens."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from neox_causal_lm.array_cache import stored
from neox_causal_lm.blend import (
    MOST_DATASETS,
    Blend,
    build_blend,
    normalise,
    samples_of_each,
    weights_by_documents,
)
from neox_causal_lm.order import LongerOrder, SampleOrder, build_order, count_epochs, count_tokens, split_documents
from neox_core.contracts.objective import SPLITS
from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import TokenSource
    from neox_core.contracts.objective import Datasets, Split
    from neox_core.plan.runfile import DataSource, RunPlan

INDEX_FOLDER = ".neox-index"
ALGORITHM = 1
"""Version of the algorithm for orders, in the name of their files; increase it with every change."""


def open_samples(plan: RunPlan, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]) -> Samples:
    """The samples of one split in the order of reading, as `contracts.Objective.samples`.

    The order is mapped from a file next to the dataset, which the first process that needs it writes.
    """
    blend, parts = (_open_named if plan.data.train else _open_share)(plan, datasets, split, rounds)
    return Samples(parts, blend, split, rounds[-1], plan.model.seq_length, vocab_size)


@frozen(eq=False)
class Part:
    """One dataset and the order of its samples. `prefix` is for messages. tokens: of one epoch."""

    prefix: str
    source: TokenSource
    order: SampleOrder | LongerOrder
    tokens: int


@frozen(eq=False)
class Samples:
    """Samples of seq_length + 1 ids by index, from one dataset or, where there is a `blend`, from several.

    wanted: the number that the run reads.
    """

    parts: tuple[Part, ...]
    blend: Blend | None
    split: Split
    wanted: int
    seq_length: int
    vocab_size: int

    def __len__(self) -> int:
        return len(self.parts[0].order) if self.blend is None else len(self.blend.turns)

    @property
    def epochs(self) -> list[float]:
        """The number of passes of the run over each dataset."""
        taken = (
            [self.wanted]
            if self.blend is None
            else np.bincount(self.blend.turns[: self.wanted], minlength=len(self.parts))
        )
        return [int(n) * self.seq_length / part.tokens for n, part in zip(taken, self.parts, strict=True)]

    @property
    def notes(self) -> list[str]:
        """What of a dataset is read more than once in an evaluation, or was made longer for the training."""
        if self.split == "train":
            return [
                f"{part.prefix}: train-iters is larger: the order of its first {len(part.order.parts[0]):,} "
                "samples stays, and another one follows it"
                for part in self.parts
                if isinstance(part.order, LongerOrder)
            ]
        return [
            f"{self.split}: {part.prefix} is too small: an evaluation reads it {epochs:.1f} times"
            for part, epochs in zip(self.parts, self.epochs, strict=True)
            if epochs > 1
        ]

    def in_words(self) -> list[str]:
        return [
            f"{part.prefix}: {len(part.order):,} samples of {self.seq_length} tokens, "
            f"{part.order.nbytes / max(1, len(part.order)):.0f} bytes each; the run reads {epochs:.2f} epochs"
            for part, epochs in zip(self.parts, self.epochs, strict=True)
        ]

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        """Copy sample `index` to `into` [seq_length + 1]. Raises DataError for an id outside of the vocabulary."""
        part, place = self._find(index)
        done = 0
        for document, offset, length in part.order.pieces(place):
            ids = part.source.read(document, offset, length)
            into[done : done + len(ids)] = ids
            done += len(ids)
        if done != len(into):
            raise DataError(f"{part.prefix}: sample {place}: its documents are shorter than their sizes")
        if into.min() < 0 or into.max() >= self.vocab_size:
            raise self._outside(index)

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(dataset, document, offset) of the first token of each sample."""
        who: NDArray[np.int64] = np.zeros((len(indices), 3), dtype="<i8")
        places = indices
        if self.blend is not None:
            who[:, 0], places = self.blend.turns[indices], self.blend.places[indices]
        for number, part in enumerate(self.parts):
            mine = who[:, 0] == number
            who[mine, 1:] = part.order.starts(places[mine])
        return who

    def _find(self, index: int) -> tuple[Part, int]:
        if self.blend is None:
            return self.parts[0], index
        return self.parts[int(self.blend.turns[index])], int(self.blend.places[index])

    def _outside(self, index: int) -> DataError:
        part, place = self._find(index)
        for document, offset, length in part.order.pieces(place):
            ids = part.source.read(document, offset, length)
            wrong = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
            if wrong.size:
                where = f"document {document}, token {offset + int(wrong[0])}"
                return DataError(
                    f"{part.prefix}: {where}: id {int(ids[wrong[0]])} is not among the model's {self.vocab_size}",
                    hint="use the vocab-file and merge-file that the dataset was prepared with",
                )
        return DataError(f"{part.prefix}: sample {place} changed while it was read")


_Opened = tuple[Blend | None, tuple[Part, ...]]


def _open_share(plan: RunPlan, datasets: Datasets, split: Split, rounds: Sequence[int]) -> _Opened:
    """The documents that `split` gives to this split."""
    if plan.data.prefix is None:
        raise DataError("there is no dataset to read", hint="set data-path; make a dataset with `neox data prepare`")
    source = datasets.source(plan.data.prefix)
    documents = split_documents(len(source.sizes), plan.data.split)[SPLITS.index(split)]
    if not documents:
        share = ", ".join(f"{share:g}" for share in plan.data.split)
        raise DataError(
            f"{plan.data.prefix}: none of its {len(source.sizes)} documents is for {split} (split {share})",
            hint=more_documents(plan.data.split, split),
        )
    return None, (_order(plan, plan.data.prefix, source, documents, split, rounds),)


def _open_named(plan: RunPlan, datasets: Datasets, split: Split, rounds: Sequence[int]) -> _Opened:
    """The datasets that the run has for this split, and their turns where there are several."""
    named: Sequence[DataSource] = getattr(plan.data, split)
    if not named:
        raise DataError(f"there is no dataset for {split}", hint=f"set {split}-data-paths")
    if len(named) > MOST_DATASETS:
        raise DataError(f"{len(named)} datasets for {split}: at most {MOST_DATASETS} can be blended")
    sources = [datasets.source(each.prefix) for each in named]
    for each, source in zip(named, sources, strict=True):
        if not len(source.sizes):
            raise DataError(f"{each.prefix}: has no documents", hint=f"remove it from {split}-data-paths")
    if plan.data.sampler_alpha is None:
        weights = normalise([each.weight for each in named])
    else:
        weights = weights_by_documents([len(source.sizes) for source in sources], plan.data.sampler_alpha)
    if len(named) == 1:
        return None, (_order(plan, named[0].prefix, sources[0], range(len(sources[0].sizes)), split, rounds),)
    _require_memory(named[0].prefix, rounds[-1], 12 * rounds[-1])
    key = _key("blend", weights, rounds[-1])
    blend = Blend(*stored(_places(plan, named[0].prefix, key), key, lambda: _arrays(build_blend(weights, rounds[-1]))))
    counts = zip(*(samples_of_each(weights, blend.turns[:count]) for count in rounds), strict=True)
    parts = [
        _order(plan, each.prefix, source, range(len(source.sizes)), split, mine)
        for each, source, mine in zip(named, sources, counts, strict=True)
    ]
    return blend, tuple(parts)


def _order(
    plan: RunPlan, prefix: str, source: TokenSource, documents: range, split: Split, rounds: Sequence[int]
) -> Part:
    chosen: NDArray[np.int32] = np.arange(documents.start, documents.stop, dtype=np.int32)
    seq_length, seed = plan.model.seq_length, plan.train.seed
    try:
        tokens = count_tokens(source.sizes, chosen)
    except ValueError:
        raise DataError(
            f"{prefix}: the {len(documents)} documents for {split} hold no token",
            hint="prepare the dataset again, or change split",
        ) from None
    sizes = source.sizes[documents.start : documents.stop]
    orders: list[SampleOrder] = []
    held = 0
    for wanted in rounds:
        more, number = wanted - held, len(orders)
        if number and more <= 0:
            continue
        epochs = count_epochs(tokens, seq_length, more)
        _require_memory(prefix, more, epochs * (4 * len(documents) + 24 * (tokens // seq_length)))
        known = (documents.start, documents.stop, seq_length, epochs, seed, *((number,) if number else ()))
        key = _key("order", *known, content=sizes)

        def compute(more: int = more, number: int = number) -> tuple[NDArray[Any], ...]:
            order = build_order(source.sizes, chosen, seq_length, more, seed, number)
            return order.documents, order.samples, order.shuffle

        orders.append(SampleOrder(*stored(_places(plan, prefix, key), key, compute)))
        held += len(orders[-1])
    return Part(prefix, source, orders[0] if len(orders) == 1 else LongerOrder(tuple(orders)), tokens)


def _require_memory(prefix: str, samples: int, needed: int) -> None:
    """Raises DataError where an order of so many samples takes more bytes than this machine has."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise DataError(
            f"{prefix}: the order of {samples:,} samples takes {needed / 2**30:,.0f} GiB, and this machine has"
            f" {memory / 2**30:,.0f}",
            hint="lower train-iters or the batch; if this run resumed, its checkpoint may need it: load another one",
        )


def _arrays(blend: Blend) -> tuple[NDArray[Any], ...]:
    return blend.turns, blend.places


def _key(*known: object, content: NDArray[np.int32] | None = None) -> str:
    """SHA-256 of everything that an order depends on."""
    digest = hashlib.sha256(json.dumps([ALGORITHM, *known]).encode())
    if content is not None:
        digest.update(np.ascontiguousarray(content, dtype="<i4").data)
    return digest.hexdigest()


def _places(plan: RunPlan, prefix: str, key: str) -> tuple[Path, ...]:
    """Next to the dataset, where every run finds it, else in the folder of this run."""
    name = f"{Path(prefix).name}-{key[:24]}"
    return Path(prefix).parent / INDEX_FOLDER / name, Path(plan.run_dir) / INDEX_FOLDER / name


def more_documents(shares: Sequence[float], split: Split) -> str:
    """The hint where a split has no documents."""
    if shares[SPLITS.index(split)] > 0:
        none = {"train": "", "valid": " or set eval-iters: 0,", "test": " or 0 for none,"}[split]
        return f"give {split} a larger share in split,{none} or prepare more documents"
    return f"give {split} a share in split" + ("" if split == "train" else ", or set eval-iters: 0")
