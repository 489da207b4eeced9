"""The check of an objective: its loss, and its samples, which are a function of their index alone.

A stream of them continues where it was.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from neox_author.testing.clauses import clauses, has, hold, hold_raises, not_applicable
from neox_author.testing.plans import example_plan
from neox_author.testing.plugins import build
from neox_core.errors import CheckpointError, DataError
from neox_core.hooks.component import load_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from neox_core.contracts.objective import Objective, Samples, SampleStream, Split
    from neox_core.hooks.catalog import Catalog
    from neox_core.plan.runfile import ModelPlan

DOCUMENTS, SEQ, WANTED = 40, 8, 30
EACH = 16
"""Ids that only one document has."""
VOCAB = DOCUMENTS * EACH


@clauses
def check_objective(
    catalog: Catalog,
    name: str,
    *,
    model: ModelPlan | None = None,
    special: int = 0,
    trained: bool = False,
    outputs: Callable[[Tensor], Any] | None = None,
    **settings: Any,
) -> None:
    """The clauses of contracts.Objective, tried on a dataset in memory of which half is for validation.

    model: the plan of a model, for an objective that reads it. special: ids of the vocabulary that are in no document,
    from `VOCAB` on. trained: also train a small model by it in several layouts, see
    `neox_author.testing.in_layouts`. outputs: for an objective that compares whole samples with each other, by other
    outputs than logits: what makes outputs of a tensor [batch, seq, vocab]. Raises AssertionError with the clause that
    does not hold.
    """
    whole = VOCAB + special
    entry = catalog.find("objective", name)
    target, chosen = entry.load(), build(entry, **settings)
    with tempfile.TemporaryDirectory() as folder:
        plan = example_plan(Path(folder), ranks=(1,))
        plan = evolve(
            plan,
            model=evolve(model or plan.model, seq_length=SEQ, padded_vocab_size=whole),
            data=evolve(plan.data, prefix=str(Path(folder) / "tokens"), split=(0.5, 0.5, 0.0)),
            train=evolve(plan.train, train_iters=WANTED, eval_iters=WANTED),
        )
        seeds = count()

        def samples(
            split: Split, rounds: Sequence[int] = (WANTED,), *, streamed: bool = False, vocab: int = whole
        ) -> Any:
            import numpy as np

            np.random.seed(next(seeds))  # as another process has it
            objective: Objective = target(plan, chosen)
            return objective.samples(split, _Datasets(streamed), vocab, tuple(rounds))

        from neox_author.testing.losses import check_loss  # imports torch

        passes = load_path(entry.component.planner)(chosen) if entry.component.planner else 1
        check_loss(target(plan, chosen), passes, whole, SEQ, outputs)
        _check_counted(samples, whole)
        if trained:
            from neox_author.testing.in_layouts import check_in_layouts, whole_name

            check_in_layouts(catalog, "objective", whole_name(entry), passes=False, trained=True, **settings)
        try:
            streamed = samples("train", streamed=True)
        except DataError:
            not_applicable("a stream continues at each place", "it refuses documents that are read in order")
            return
        _check_stream(streamed, samples("train", streamed=True))


def _check_counted(samples: Callable[..., Samples], vocab: int) -> None:
    import numpy as np

    train, again = samples("train"), samples("train")
    has(train, "what samples() gives", "read", "identify", "in_words", "__len__")
    for lines in (train.notes, train.in_words()):
        hold(
            isinstance(lines, list | tuple) and all(isinstance(each, str) for each in lines),
            f"notes and in_words() are lines, not {lines!r}",
        )
    hold(len(train) >= WANTED, f"there are as many samples as are wanted, {WANTED}, not {len(train)}")
    ids = _read(train, range(WANTED))
    hold(ids.min() >= 0 and ids.max() < vocab, "read() fills all of `into` with ids of the vocabulary")
    hold(np.array_equal(_read(again, range(WANTED)), ids), "a sample is the same in every process")
    backwards = _read(train, range(WANTED)[::-1])[::-1]
    hold(np.array_equal(backwards, ids), "a sample does not depend on those that were read before it")
    longer = samples("train", (WANTED, 4 * WANTED))
    hold(len(longer) >= 4 * WANTED, "there are as many samples as the last of `rounds` wants")
    hold(
        np.array_equal(_read(longer, range(WANTED)), ids),
        "the samples below one of `rounds` do not change when others follow it",
    )
    hold(len(samples("train", (0,))) > 0, "`rounds` of 0 alone is one pass over the documents")
    _check_identity(train, ids)
    valid = _read(samples("valid"), range(WANTED))
    shared = {*(ids // EACH).flat} & {*(valid // EACH).flat} & {*range(DOCUMENTS)}
    hold(not shared, f"a document is in the samples of one split; documents {sorted(map(int, shared))} are in two")
    outside = partial(samples, "train", vocab=1)
    clause = "read() raises DataError for an id outside of the vocabulary"
    hold_raises(DataError, lambda: _read(outside(), range(WANTED)), clause)
    hold_raises(DataError, lambda: samples("test"), "samples() raises DataError where a split has no documents")


def _check_identity(train: Samples, ids: NDArray[np.int64]) -> None:
    import numpy as np

    who = train.identify(np.arange(WANTED))
    hold(
        isinstance(who, np.ndarray) and who.ndim == 2 and len(who) == WANTED and who.dtype == np.int64,
        "identify() gives int64 [indices, one width]",
    )
    alone = np.concatenate([train.identify(np.array([index])) for index in range(WANTED)])
    hold(np.array_equal(alone, who), "identify() of a sample does not depend on the others that are asked for")
    rows: dict[tuple[int, ...], tuple[int, ...]] = {}
    for row, sample in zip(who.tolist(), ids.tolist(), strict=True):
        first = rows.setdefault(tuple(row), tuple(sample))
        hold(first == tuple(sample), "samples that differ have different rows of identify()")


def _check_stream(stream: SampleStream, again: SampleStream) -> None:
    has(stream, "what samples() gives for a stream", "read_from")
    hold(isinstance(stream.identity, str) and stream.identity == again.identity, "`identity` is a text that stays")
    before = _Documents.given
    reader, whole = stream.read_from(None), []
    hold(_Documents.given == before, "read_from() reads no document yet")
    places = []
    for _ in range(WANTED):
        places.append(json.loads(json.dumps(reader.place())))
        who, ids = reader.next_sample()
        hold(ids.shape == (SEQ + 1,) and all(isinstance(each, int) for each in who), "a sample is (whole numbers, ids)")
        whole.append((who, ids.tolist()))
    fresh = again.read_from(None)
    asked = [(who, ids.tolist()) for who, ids in (fresh.next_sample() for _ in range(WANTED))]
    hold(asked == whole, "a stream is the same in every process, whether place() is called or not")
    for first in (1, WANTED // 2, WANTED - 1):
        later = again.read_from(places[first])
        rest = [(who, ids.tolist()) for who, ids in (later.next_sample() for _ in range(WANTED - first))]
        hold(rest == whole[first:], f"read_from() the place of sample {first}, as JSON holds it, continues there")
    clause = "read_from() raises CheckpointError for a place that is not one of the stream"
    hold_raises(CheckpointError, lambda: stream.read_from({"nowhere": 1}), clause)


def _read(samples: Samples, indices: Sequence[int]) -> NDArray[np.int64]:
    """int64 [indices, SEQ + 1]; what is not written stays negative."""
    import numpy as np

    into: NDArray[np.int64] = np.full((len(indices), SEQ + 1), -1, dtype=np.int64)
    for row, index in zip(into, indices, strict=True):
        samples.read(index, row)
    return into


class _Datasets:
    """One dataset whatever the prefix: document k has ids from k * EACH on, alone."""

    def __init__(self, streamed: bool) -> None:
        self.streamed = streamed

    def source(self, prefix: str) -> Any:
        return _Documents()

    def stream(self, prefix: str) -> Any:
        return _Documents()


class _Documents:
    """A TokenSource and a TokenStream of the same documents, of 1 to 24 tokens."""

    identity = "documents of the kit"
    given = 0

    def __init__(self) -> None:
        import numpy as np

        self.sizes: NDArray[np.int32] = (1 + np.arange(DOCUMENTS) * 7 % 24).astype(np.int32)
        self.dtype = np.dtype(np.int32)

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[np.int32]:
        import numpy as np

        ids = document * EACH + np.arange(self.sizes[document], dtype=np.int32) % EACH
        return ids[offset : None if length is None else offset + length]

    def documents(
        self, first: tuple[int, int], number: int, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, int, int, NDArray[np.int32]]]:
        for document in range(number, DOCUMENTS):
            if wanted(document):
                _Documents.given += 1
                yield 0, document + 1, document, self.read(document)
