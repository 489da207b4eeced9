"""The tokens that a rank trains on: a pure function of (seed, global step)."""

from __future__ import annotations

import atexit
import signal
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from attrs import frozen
from torch.utils.data import DataLoader

from neox_core.build.order import SampleOrder, build_order, split_documents
from neox_core.errors import DataError
from neox_core.model.shape import padded_vocab

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from neox_core.contracts import Tokenizer, TokenSource
    from neox_core.plan.runfile import RunPlan

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def build_tokenizer(plan: RunPlan) -> Tokenizer | None:
    """The tokenizer of the run, None when it names none. Raises DataError when its files cannot be read."""
    if plan.data.tokenizer is None:
        return None
    target, settings = plan.data.tokenizer.load()
    tokenizer: Tokenizer = target(settings)
    return tokenizer


def build_batches(
    plan: RunPlan,
    split: Split,
    *,
    data_rank: int,
    data_size: int,
    first_step: int,
    vocab_size: int | None = None,
) -> Iterator[Tensor]:
    """This rank's micro-batches, int64 [micro_batch, seq_length + 1], from global step `first_step` to the end.

    train: `gradient_accumulation` of them a step, train_iters steps; step k takes the samples from k * train_batch on,
    whatever the ranks and the accumulation. valid, test: one an evaluation iteration, eval_iters of them; each call
    begins anew, so every pass sees the same samples. Starting at any step costs the same.

    The training split is read ahead by `num_workers` processes; an evaluation is too short to gain from them.
    vocab_size: rows of the embedding, worked out from the plan when not given. Raises DataError for a dataset that
    cannot be read, that has no documents for the split, or that holds an id outside of the vocabulary.
    """
    samples = open_split(plan, split, vocab_size)
    if split == "train":
        accumulation, steps, workers = plan.batch.gradient_accumulation, plan.train.train_iters, plan.data.num_workers
    else:
        accumulation, steps, workers = 1, plan.train.eval_iters, 0
    batches = MicroBatches(samples, plan.batch.micro_batch, data_rank, data_size, steps * accumulation)
    return _Reader(batches, first_step * accumulation, workers)


def open_split(plan: RunPlan, split: Split, vocab_size: int | None = None) -> Samples:
    """The samples of one split in the order they are read."""
    if plan.data.prefix is None:
        raise DataError("there is no dataset to read", hint="set data-path; `neox data prepare` makes a dataset")
    backend, settings = plan.data.backend.load()
    source: TokenSource = backend(settings).open(Path(plan.data.prefix))
    steps = plan.train.train_iters if split == "train" else plan.train.eval_iters
    documents = _documents_of(plan, split, len(source.sizes))
    try:
        order = build_order(
            source.sizes,
            np.arange(documents.start, documents.stop, dtype=np.int32),
            plan.model.seq_length,
            steps * plan.batch.train_batch,
            plan.train.seed,
        )
    except ValueError:
        raise DataError(
            f"{plan.data.prefix}: the {len(documents)} documents for {split} hold no token",
            hint="prepare the dataset again, or change split",
        ) from None
    if vocab_size is None:
        tokenizer = build_tokenizer(plan) if plan.model.padded_vocab_size is None else None
        vocab_size = padded_vocab(plan.model, tokenizer.vocab_size if tokenizer else None)
    return Samples(plan.data.prefix, source, order, plan.model.seq_length, vocab_size)


@frozen(eq=False)
class Samples:
    """Samples of seq_length + 1 ids by index. `prefix` is for messages."""

    prefix: str
    source: TokenSource
    order: SampleOrder
    seq_length: int
    vocab_size: int

    def __len__(self) -> int:
        return len(self.order)

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        """Copy sample `index` to `into` [seq_length + 1]."""
        done = 0
        for document, offset, length in self.order.pieces(index):
            ids = self.source.read(document, offset, length)
            into[done : done + len(ids)] = ids
            done += len(ids)
        if into.min() < 0 or into.max() >= self.vocab_size:
            raise self._outside(index)

    def _outside(self, index: int) -> DataError:
        for document, offset, length in self.order.pieces(index):
            ids = self.source.read(document, offset, length)
            wrong = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
            if wrong.size:
                place = f"document {document}, token {offset + int(wrong[0])}"
                return DataError(
                    f"{self.prefix}: {place}: id {int(ids[wrong[0]])} is not among the model's {self.vocab_size}",
                    hint="vocab-file and merge-file must be those that the dataset was prepared with",
                )
        return DataError(f"{self.prefix}: sample {index} changed while it was read")


@frozen(eq=False)
class MicroBatches:
    """The micro-batches of one rank by index: `index` counts accumulation steps from the beginning of the run.

    Sample k of a step goes to accumulation k // (micro_batch * data_size), then to rank k // micro_batch % data_size.
    """

    samples: Samples
    micro_batch: int
    data_rank: int
    data_size: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor | DataError:
        """int64 [micro_batch, seq_length + 1]. An error is returned, since a worker would wrap one that it raises."""
        first = (index * self.data_size + self.data_rank) * self.micro_batch
        batch: NDArray[np.int64] = np.empty((self.micro_batch, self.samples.seq_length + 1), dtype=np.int64)
        try:
            for row, into in enumerate(batch, start=first):
                self.samples.read(row, into)
        except DataError as error:
            return error
        return torch.from_numpy(batch)


class _Reader:
    """Micro-batches from `first` on; its processes start at once and end with it, or with this process."""

    def __init__(self, batches: MicroBatches, first: int, workers: int) -> None:
        loader: Any = DataLoader(
            batches,
            batch_size=None,
            sampler=range(first, len(batches)),
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=_leave_signals_to_the_rank,
            generator=torch.Generator(),  # its own, so that reading draws nothing from the generator of the model
            prefetch_factor=4 if workers else None,
        )
        self._batches = iter(loader)
        if workers:  # they ignore SIGTERM, with which Python would end them when this process leaves by a traceback
            atexit.register(_end, weakref.ref(self._batches))

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> Tensor:
        batch = next(self._batches)
        if isinstance(batch, DataError):
            self._batches = iter(())
            raise batch
        return batch


def _end(batches: weakref.ref[Any]) -> None:
    alive = batches()
    if alive is not None:
        alive._shutdown_workers()  # noqa: SLF001 - torch has no other way to end them while a traceback holds them


def _leave_signals_to_the_rank(worker: int) -> None:
    """Ctrl-C reaches every process of the terminal; the rank must be able to finish its step and save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _documents_of(plan: RunPlan, split: Split, num_documents: int) -> range:
    documents = split_documents(num_documents, plan.data.split)[SPLITS.index(split)]
    if not documents:
        share = ", ".join(f"{share:g}" for share in plan.data.split)
        raise DataError(
            f"{plan.data.prefix}: none of its {num_documents} documents is for {split} (split {share})",
            hint=_more_documents(plan.data.split, split),
        )
    return documents


def _more_documents(shares: Sequence[float], split: Split) -> str:
    if shares[SPLITS.index(split)] > 0:
        return f"give {split} a larger share in split, or prepare a dataset of more documents"
    return f"give {split} a share in split" + ("" if split == "train" else ", or set eval-iters: 0")
