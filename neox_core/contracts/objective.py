"""The objective of a run: which samples are made of documents, and the loss of a batch of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from neox_core.contracts.data import TokenSource, TokenStream
    from neox_core.parallel.row import Documents

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
IGNORED = -100
"""The label of a token that does not count."""


class Datasets(Protocol):
    """The datasets of a run, by prefix, each opened once for all splits."""

    @property
    def streamed(self) -> bool:
        """Whether documents are read in their own order, with `stream`; else with `source`."""

    def source(self, prefix: str) -> TokenSource:
        """The dataset at a prefix, where the backend counts documents."""

    def stream(self, prefix: str) -> TokenStream:
        """The documents at a prefix, where `streamed` is True."""


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

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        """Copy sample `index` to `into`, int64 [seq_length + 1]. Raises DataError for an id outside of the vocabulary.

        An index is read when it is needed, without those before it.
        """

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each sample by itself is made of, int64 [indices, one width]: rows differ where samples do.

        The hash of what a run has read is made of these rows; called for up to 2^18 samples at once.
        """

    def in_words(self) -> Sequence[str]:
        """A line for each dataset, for `neox data index`."""


class SampleReader(Protocol):
    """Reads a stream from one sample to the next, without end."""

    def next_sample(self) -> tuple[tuple[int, ...], NDArray[np.int32]]:
        """(whole numbers that identify the next sample, its ids [seq_length + 1]). Raises DataError."""

    def place(self) -> dict[str, Any]:
        """Where the next sample starts, as plain values that JSON holds; a checkpoint stores them. May read ahead."""


class SampleStream(Protocol):
    """The samples of one split in order, of documents that are read only in theirs.

    Every rank reads the whole stream and keeps its own rows, so a sample depends on no rank. Else as `Samples`.
    """

    @property
    def identity(self) -> str:
        """A text that changes when the samples change."""

    def read_from(self, place: Mapping[str, Any] | None) -> SampleReader:
        """The samples from a `SampleReader.place` on; None: from the first. Reads no document yet.

        Raises CheckpointError for a place that is not one of this stream.
        """


@frozen(eq=False)
class Batch:
    """A micro-batch of samples, on the device.

    * tokens: int64 [batch, seq + 1].
    * keys: int64 [batch], of the samples, for random numbers that follow from (seed, sample); None unless `draws`.
    * documents: which labels count, where that depends on the documents in a sample; None: all do.
    """

    tokens: Tensor
    keys: Tensor | None = None
    documents: Documents | None = None


@frozen(eq=False)
class Scores:
    """What a model says of one label for each token, in fp32 or wider, [batch, seq], with gradients.

    * log_prob: log softmax of the label; 0 where the label is -100.
    * mean_log_prob: the mean of log softmax over the vocabulary, its padding included.
    * log_sum: the logarithm of the sum of the exponentials of all logits.
    """

    log_prob: Tensor
    mean_log_prob: Tensor
    log_sum: Tensor


class Outputs(Protocol):
    """What one pass over the model gives. No method waits for the device; every tensor-parallel rank gets the same.

    labels: int64 [batch, seq], of the pass's tokens; -100 does not count.
    auxiliary_losses, metrics: of the parts of the model, by name, scalars. The engine adds these losses to that of the
    objective, where the pass has gradients, and logs both.
    """

    @property
    def auxiliary_losses(self) -> Mapping[str, Tensor]: ...
    @property
    def metrics(self) -> Mapping[str, Tensor]: ...

    def cross_entropy(self, labels: Tensor) -> Tensor:
        """The mean of -log softmax of the labels that count, in fp32 or wider; 0 where none does. The fastest op."""

    def scores(self, labels: Tensor) -> Scores:
        """What the model says of each label, without logits of the whole batch. Slower than `cross_entropy`."""

    def logits(self) -> Tensor:
        """[batch, seq, vocab], with gradients. They take much memory."""


Run = Callable[["Tensor"], Outputs]
"""One pass over the model: int64 [batch, seq] tokens, as many rows as the batch. Passes draw different dropout."""


@frozen(eq=False)
class Loss:
    """What an objective says of a micro-batch.

    * mean: a scalar in fp32 or wider, the mean over what counts; it and its gradient are finite where the outputs are.
    * metrics: scalars by name, a word but `loss`, always the same; means, no gradients, in the log `objective_<name>`.
    """

    mean: Tensor
    metrics: Mapping[str, Tensor] = field(factory=dict)


class Objective(Protocol):
    """`target(plan: RunPlan, settings) -> Objective`.

    A process that reads a run's data makes one of its own, and so does the engine of a rank.

    Planner: `(settings) -> int`, how many passes over the model a batch takes; without one, 1. A pipeline refuses more
    than one, before the start. It may have `rules`, as an architecture's planner; `takes_cross_entropy(settings)`,
    whether the loss uses nothing else of `Outputs`, as `time+head` needs; and, where it reads other datasets than
    `data-path`, `datasets(config)`, the key and prefix of each, and `data(config, plan)`, the DataPlan with them.

    * `draws`, True where `loss` uses `Batch.keys`, may be left out otherwise.
    * `inputs`, `weights` and `loss` are pure functions of the batch and the model: they keep nothing, do not wait for
      the device, change no tensor, and draw no random numbers but those that follow from the keys. None is collective,
      except where the outputs of the model are: all data-parallel ranks make equally many passes.
    """

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

    def inputs(self, batch: Batch) -> Tensor:
        """The tokens of the first pass, int64 [batch, seq]: a pipeline starts it before `loss` is called."""

    def weights(self, batch: Batch) -> Tensor | None:
        """What each label counts for, [batch, seq], not negative, 0 where `documents` says so; None, always: all alike.

        The mean loss of each micro-batch is multiplied by its share of the weights of the step, all data-parallel
        ranks together, so that the loss of the step is the mean over what counts.
        """

    def loss(self, run: Run, batch: Batch) -> Loss:
        """The loss of a micro-batch. The first call of `run` is with `inputs(batch)`.

        In an evaluation, gradients and dropout are off; the mean is then the same, or one of the metrics of training,
        without what is only added there. A pass without gradients is made under `torch.no_grad()`.
        """
