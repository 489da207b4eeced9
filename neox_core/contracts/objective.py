"""The objective of a run: which samples are made of documents.

The loss is still that of the architecture: it gets the first seq_length tokens of each sample and predicts the last
seq_length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from neox_core.contracts.data import TokenSource, TokenStream

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


class Datasets(Protocol):
    """The datasets of a run, by prefix, each opened once for all splits."""

    @property
    def streamed(self) -> bool:
        """Whether documents are read in their own order, with `stream`; else with `source`."""
        ...

    def source(self, prefix: str) -> TokenSource: ...

    def stream(self, prefix: str) -> TokenStream: ...


class Samples(Protocol):
    """The samples of one split by index, from 0. Each is seq_length + 1 token ids.

    * A sample is a pure function of the plan, the documents and its index. It depends neither on the rank nor on the
      number of ranks, and it is the same when a run resumes: a checkpoint stores no state of it.
    * A document is in the samples of one split alone.
    * Forked workers read at the same time. No method is collective, and none uses the device.
    """

    notes: Sequence[str]
    """Lines for people, shown at the start of the run."""

    def __len__(self) -> int:
        """How many samples there are; at least as many as were wanted."""
        ...

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        """Copy sample `index` to `into`, int64 [seq_length + 1]. Raises DataError for an id outside of the vocabulary.

        An index is read when it is needed, without those before it.
        """
        ...

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each sample is made of, int64 [indices, any width]: rows are equal where samples are.

        The hash of what a run has read is made of these rows; called for up to 2^18 samples at once.
        """
        ...

    def in_words(self) -> Sequence[str]:
        """A line for each dataset, for `neox data index`."""
        ...


class SampleReader(Protocol):
    """Reads a stream from one sample to the next, without end."""

    def next_sample(self) -> tuple[tuple[int, ...], NDArray[np.int32]]:
        """(whole numbers that identify the next sample, its ids [seq_length + 1]). Raises DataError."""
        ...

    def place(self) -> dict[str, Any]:
        """Where the next sample starts, as plain values that JSON holds; a checkpoint stores them. May read ahead."""
        ...


class SampleStream(Protocol):
    """The samples of one split in order, of documents that are read only in theirs.

    Every rank reads the whole stream and keeps its own rows, so a sample depends on no rank. The other clauses are
    those of `Samples`.
    """

    @property
    def identity(self) -> str:
        """A text that changes when the samples change."""
        ...

    def read_from(self, place: Mapping[str, Any] | None) -> SampleReader:
        """The samples from a `SampleReader.place` on; None: from the first. Reads no document yet.

        Raises CheckpointError for a place that is not one of this stream.
        """
        ...


class Objective(Protocol):
    """`target(plan: RunPlan, settings) -> Objective`. A process that reads a run's data makes one of its own."""

    def samples(
        self, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]
    ) -> Samples | SampleStream:
        """The samples of a split: a SampleStream where the datasets are streamed, else Samples.

        vocab_size: every id is below it.
        rounds: rising numbers of samples, at least one: what the run wanted when it began, and each time that it was
        made longer. The samples below one of them do not change when others follow it. 0 alone: one pass over the
        documents. A stream does not need them.
        What takes long to compute is stored beside the dataset. Raises DataError for a dataset that cannot be read or
        has no documents for the split, and where streamed documents make no samples of this objective.
        """
        ...
