"""Micro-batches of samples that are read in order, and where a run is in them.

Sample i is sample i of the stream for any number of ranks; each rank reads the whole stream and keeps its
own rows. So nothing is counted before the first step, and only a few documents are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import frozen
from torch.utils.data import IterableDataset

from neox_core.data.sample_hash import link
from neox_core.errors import CheckpointError, DataError, NeoxError
from neox_core.hooks.blame import blame
from neox_core.untrusted import strict_converter, structured

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import SampleStream
    from neox_core.plan.runfile import BatchPlan


@frozen
class Mark:
    """A run after `step` steps: the hash of its samples, and the `contracts.SampleReader.place` of the next one."""

    step: int
    trail: int
    place: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        return {"step": self.step, "trail": self.trail, **self.place}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Mark:
        """A Mark from plain values. Raises CheckpointError for values that `plain` did not make."""
        own = {name: plain[name] for name in ("step", "trail") if name in plain}
        place = {name: value for name, value in plain.items() if name not in own}
        return structured(
            strict_converter(), {**own, "place": place}, cls, "not a position in the texts", CheckpointError
        )


@frozen
class Layout:
    """The samples of a step that this rank reads, as in `MicroBatches`, and the number of its batches, or `batch`."""

    micro_batch: int
    accumulation: int
    data_rank: int
    data_size: int
    batch: BatchPlan | None = None


class StreamBatches(IterableDataset[Any]):
    """This rank's micro-batches, int64 [micro_batch, length + 1], each with the Mark of the step that it ends, or None.

    start: where to start; the samples between it and first_step are read and skipped. curriculum: gives the length
    of the samples of a step; None: seq_length.
    """

    def __init__(
        self,
        stream: SampleStream,
        layout: Layout,
        *,
        start: Mark | None,
        seq_length: int,
        first_step: int,
        steps: int,
        curriculum: Curriculum | None = None,
    ) -> None:
        if curriculum is not None and curriculum.chooses:
            hint = "prepare it with `neox data prepare`"
            raise DataError("a curriculum cannot choose samples of plain text, which is read in order", hint=hint)
        self._stream, self._layout, self._curriculum = stream, layout, curriculum
        self._start, self._seq_length, self._first_step, self._steps = start, seq_length, first_step, steps

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
        samples, layout = self._stream.read_from(self._start.place if self._start else None), self._layout
        begin, trail = (self._start.step, self._start.trail) if self._start else (0, 0)
        for step in range(begin, self._steps):
            who = []
            length = self._curriculum.sequence_length(step) if self._curriculum else self._seq_length
            turns = layout.accumulation if layout.batch is None else layout.batch.passes(step)
            for turn in range(turns):
                mine: NDArray[np.int64] = np.empty((layout.micro_batch, length + 1), dtype=np.int64)
                for place in range(layout.micro_batch * layout.data_size):
                    each, ids = samples.next_sample()
                    who.append(each)
                    rank, row = divmod(place, layout.micro_batch)
                    if rank == layout.data_rank:
                        mine[row] = ids[: length + 1]
                mark = None
                if turn == turns - 1:
                    trail = link(trail, np.array(who, dtype="<i8").tobytes())
                    mark = Mark(step + 1, trail, samples.place())
                if step >= self._first_step:
                    yield torch.from_numpy(mine), mark
