"""The tokens that a rank trains on: a pure function of (seed, global step)."""

from __future__ import annotations

import atexit
import os
import signal
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import frozen
from torch.utils.data import DataLoader

from neox_core.data.samples import is_stream, open_split
from neox_core.data.sources import build_tokenizer
from neox_core.data.stream import Layout, Mark, StreamBatches
from neox_core.errors import DataError, NeoxError
from neox_core.hooks.blame import blame

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import Samples, SampleStream, Split
    from neox_core.plan.runfile import RunPlan

__all__ = ["MicroBatches", "Reader", "build_batches", "build_tokenizer", "open_split"]


def build_batches(
    plan: RunPlan,
    split: Split,
    *,
    data_rank: int,
    data_size: int,
    first_step: int,
    vocab_size: int | None = None,
    rounds: Sequence[int] = (),
    curriculum: Curriculum | None = None,
    start: Mark | None = None,
    opened: Samples | SampleStream | None = None,
) -> Reader:
    """This rank's micro-batches, int64 [micro_batch, seq_length + 1], from global step `first_step` to the end.

    train: `gradient_accumulation` of them a step, train_iters steps; step k takes the samples from k * train_batch on,
    whatever the ranks and the accumulation. valid, test: one an evaluation iteration, eval_iters of them; each call
    starts at the first sample, so every pass sees the same samples. Starting at any step costs the same; for
    plain text, only from a `start` that was a `Reader.mark`, else the text before it is read and skipped.

    `num_workers` processes read the training split ahead; an evaluation is too short to gain from them. A curriculum
    chooses the samples of a training step and the number of their tokens: [micro_batch, its sequence_length + 1].
    vocab_size: rows of the embedding, computed from the plan when not given. rounds: see `open_split`. opened:
    the samples, if they are already open; then vocab_size and rounds are not used. Raises DataError for a dataset
    that cannot be read, has no documents for the split, or holds an id outside of the vocabulary.
    """
    if split == "train":
        accumulation, steps, workers = plan.batch.gradient_accumulation, plan.train.train_iters, plan.data.num_workers
        if curriculum is not None and curriculum.num_workers is not None:
            workers = curriculum.num_workers
    else:
        accumulation, steps, workers = 1, plan.train.eval_iters, 0
        rounds, curriculum, start = (), None, None
    micro_batch, first, count = plan.batch.micro_batch, first_step, steps
    if split == "train":
        first, count = plan.batch.passes_before(first_step), plan.batch.passes_before(steps)
    if opened is None:
        opened = open_split(plan, split, vocab_size, rounds=rounds, curriculum=curriculum)
    seq_length = plan.model.seq_length
    if is_stream(opened):
        stream = StreamBatches(
            opened,
            Layout(micro_batch, accumulation, data_rank, data_size, plan.batch if split == "train" else None),
            start=start,
            seq_length=seq_length,
            first_step=first_step,
            steps=steps,
            curriculum=curriculum,
        )
        return Reader(stream, None, min(workers, 1))
    batches = MicroBatches(opened, seq_length, micro_batch, data_rank, data_size, count, accumulation, curriculum)
    return Reader(batches, range(first, count), workers)


@frozen(eq=False)
class MicroBatches:
    """The micro-batches of one rank by index: `index` counts accumulation steps from the start of the run.

    accumulation: micro-batches of a step. curriculum: gives the length of the samples of a step; None: seq_length.
    Sample k of a step goes to accumulation k // (micro_batch * data_size), then to rank k // micro_batch % data_size.
    """

    samples: Samples
    seq_length: int
    micro_batch: int
    data_rank: int
    data_size: int
    count: int
    accumulation: int = 1
    curriculum: Curriculum | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor | NeoxError:
        """int64 [micro_batch, length + 1]. An error is returned, since a worker would wrap one that it raises."""
        first = (index * self.data_size + self.data_rank) * self.micro_batch
        batch: NDArray[np.int64] = np.empty((self.micro_batch, self.seq_length + 1), dtype=np.int64)
        try:
            for row, into in enumerate(batch, start=first):
                self.samples.read(row, into)
        except NeoxError as error:
            return error
        except Exception as error:
            blamed = blame(error)
            if blamed is None:
                raise
            return blamed
        if self.curriculum is not None:
            length = self.curriculum.sequence_length(index // self.accumulation)
            batch = np.ascontiguousarray(batch[:, : length + 1])
        return torch.from_numpy(batch)


class Reader:
    """An iterator of micro-batches; its processes start at once and end with it, or with this process.

    mark: the end of the step of the last micro-batch, if it was the last of that step and the data is
    a stream. A stream has one process, since each would read all of it.
    """

    def __init__(self, batches: MicroBatches | StreamBatches, order: range | None, workers: int) -> None:
        self.mark: Mark | None = None
        loader: Any = DataLoader(
            batches,
            batch_size=None,
            sampler=order,
            collate_fn=_as_it_is,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # its own generator, so that reading does not draw from the model's
            prefetch_factor=4 if workers else None,
        )
        children = signal.getsignal(signal.SIGCHLD)
        self._batches = iter(loader)
        if signal.getsignal(signal.SIGCHLD) is not children:
            # torch's handler raises wherever the rank is, also in the middle of a step
            signal.signal(signal.SIGCHLD, children)
        if workers:  # they ignore SIGTERM, with which Python would end them when this process exits with a traceback
            atexit.register(_end, weakref.ref(self._batches))

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Tensor:
        try:
            batch = next(self._batches)
        except (RuntimeError, ConnectionError, EOFError) as error:  # torch names the process and the signal, if it can
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            said = f"a process that reads the data died: {error}"
            hint = "check whether memory ran out or a dataset changed; set num-workers: 0 to read in the rank itself"
            raise DataError(said, hint=hint) from error
        if isinstance(batch, NeoxError):
            self._batches = iter(())
            raise batch
        if isinstance(batch, tuple):
            batch, self.mark = batch
        tokens: Tensor = batch
        return tokens


def _end(batches: weakref.ref[Any]) -> None:
    alive = batches()
    if alive is not None:
        alive._shutdown_workers()  # noqa: SLF001 - torch has no other way to end them while a traceback holds them


def _as_it_is(batch: Any) -> Any:
    return batch


def _start_worker(worker: int) -> None:
    """Ctrl-C reaches every process of the terminal; the rank must be able to finish its step and save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # whose threads do not exist in this process
