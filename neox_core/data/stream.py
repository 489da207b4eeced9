"""Micro-batches of text that is tokenized while it is read, in the order of its files.

Sample i is sample i of the stream for any number of ranks; each rank reads the whole stream and keeps its
own rows. So nothing is counted before the first step, and only a few documents are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import frozen
from torch.utils.data import IterableDataset

from neox_core.data.dataset import SPLITS, Split, more_documents
from neox_core.data.pack import Mark, Mixer, Packer, Place, Share, share_of
from neox_core.data.sample_hash import link
from neox_core.errors import DataError, NeoxError
from neox_core.hooks.component import blame

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from neox_core.contracts import Curriculum, TokenStream
    from neox_core.data.sources import Datasets
    from neox_core.plan.runfile import ComponentRef, RunPlan


@frozen
class Source:
    """One stream: its name for messages, and its weight, relative to the others."""

    name: str
    stream: TokenStream
    weight: float


@frozen
class Streams:
    """The streams of a split. identity: changes when their samples change."""

    sources: tuple[Source, ...]
    share: Share
    seq_length: int
    vocab_size: int
    backend: ComponentRef

    @property
    def identity(self) -> str:
        known = [(each.stream.identity, each.weight) for each in self.sources]
        return hashlib.sha256(f"{known} {self.share} {self.seq_length}".encode()).hexdigest()

    def mixer(self, start: Mark | None) -> Mixer:
        """The samples from `start` on; None: from the first. Raises DataError."""
        begin = start or Mark(0, 0, (0,) * len(self.sources), (Place(),) * len(self.sources))
        packers = [
            Packer(each.name, each.stream, self.share, self.seq_length, self.vocab_size, place, self.backend)
            for each, place in zip(self.sources, begin.places, strict=True)
        ]
        total = sum(each.weight for each in self.sources)
        return Mixer(packers, [each.weight / total for each in self.sources], begin.taken)


def open_streams(plan: RunPlan, split: Split, datasets: Datasets, vocab_size: int) -> Streams:
    """Open the streams of a split. Raises DataError where it has none."""
    if not plan.data.train:
        if plan.data.prefix is None:
            raise DataError("there is no text to read", hint="set data-path")
        share = share_of(plan.data.split, SPLITS.index(split))
        if share.first >= share.end:
            hint = more_documents(plan.data.split, split)
            raise DataError(f"{plan.data.prefix}: none of its documents is for {split}", hint=hint)
        sources = [Source(f"{plan.data.prefix} for {split}", datasets.stream(plan.data.prefix), 1.0)]
    else:
        share = Share()
        named = getattr(plan.data, split)
        if not named:
            raise DataError(f"there is no dataset for {split}", hint=f"set {split}-data-paths")
        if plan.data.sampler_alpha is not None:
            hint = f"give {split}-data-weights, or prepare the text"
            raise DataError("the number of documents of a text is not known before it is read", hint=hint)
        sources = [Source(f"{each.prefix} for {split}", datasets.stream(each.prefix), each.weight) for each in named]
    return Streams(tuple(sources), share, plan.model.seq_length, vocab_size, plan.data.backend)


@frozen
class Layout:
    """The samples of a step that this rank reads, as in `MicroBatches`, and the number of its batches."""

    micro_batch: int
    accumulation: int
    data_rank: int
    data_size: int


class StreamBatches(IterableDataset[Any]):
    """This rank's micro-batches, int64 [micro_batch, length + 1], each with the Mark of the step that it ends, or None.

    start: where to start; the samples between it and first_step are read and skipped. curriculum: gives the length
    of the samples of a step; None: seq_length.
    """

    def __init__(
        self,
        streams: Streams,
        layout: Layout,
        *,
        start: Mark | None,
        first_step: int,
        steps: int,
        curriculum: Curriculum | None = None,
    ) -> None:
        if curriculum is not None and curriculum.chooses:
            hint = "prepare it with `neox data prepare`"
            raise DataError("a curriculum cannot choose samples of plain text, which is read in order", hint=hint)
        self._streams, self._layout, self._curriculum = streams, layout, curriculum
        self._start, self._first_step, self._steps = start, first_step, steps

    def __iter__(self) -> Iterator[tuple[Tensor, Mark | None] | NeoxError]:
        """Iterate; an error is returned as the last item, since a worker would wrap one that it raises."""
        try:
            yield from self._batches()
        except NeoxError as error:
            yield error
        except Exception as error:
            blamed = blame(error)
            if blamed is None:
                raise
            yield blamed

    def _batches(self) -> Iterator[tuple[Tensor, Mark | None]]:
        samples, layout = self._streams.mixer(self._start), self._layout
        begin, trail = (self._start.step, self._start.trail) if self._start else (0, 0)
        for step in range(begin, self._steps):
            who = []
            length = self._curriculum.sequence_length(step) if self._curriculum else self._streams.seq_length
            for turn in range(layout.accumulation):
                mine: NDArray[np.int64] = np.empty((layout.micro_batch, length + 1), dtype=np.int64)
                for place in range(layout.micro_batch * layout.data_size):
                    each, ids = next(samples)
                    who.append(each)
                    rank, row = divmod(place, layout.micro_batch)
                    if rank == layout.data_rank:
                        mine[row] = ids[: length + 1]
                mark = None
                if turn == layout.accumulation - 1:
                    trail = link(trail, np.array(who, dtype="<i8").tobytes())
                    mark = samples.mark(step + 1, trail)
                if step >= self._first_step:
                    yield torch.from_numpy(mine), mark
