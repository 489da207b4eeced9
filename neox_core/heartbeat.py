"""The progress that each rank of a machine reports to the process that started it, in shared memory.

A launcher that watches its ranks creates one `Heartbeats` for those of a machine and puts its path into their
environment as NEOX_HEARTBEAT. On STACK_SIGNAL a rank writes the Python stack of each of its threads to stderr.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from pathlib import Path
from typing import IO

from attrs import frozen

VARIABLE = "NEOX_HEARTBEAT"
STACK_SIGNAL = signal.SIGUSR2
_CELLS = 4
_BYTES = 8 * _CELLS


@frozen
class Beat:
    """The last report of a rank. beats: how often it made progress, 0 before the training loop; step: finished steps.

    patience_s: seconds that it may now make no progress; 0: no limit. asked_patience_s: once asked to stop.
    """

    beats: int
    step: int
    patience_s: float
    asked_patience_s: float


class Heartbeat:
    """A rank's own part of that memory, or private memory where no process watches."""

    def __init__(self, local_rank: int = 0) -> None:
        cells = _shared(local_rank)
        self.watched = cells is not None
        self._cells = memoryview(bytearray(_BYTES)).cast("q") if cells is None else cells

    def beat(self) -> None:
        """Report progress of this rank: one write into memory."""
        self._cells[0] += 1

    def reached(self, step: int) -> None:
        """Report the number of finished steps."""
        self._cells[1] = step

    def expect(self, patience_s: float, asked_patience_s: float) -> None:
        """Set how long the next phase may take without a beat; see `Beat`."""
        self._cells[2], self._cells[3] = round(patience_s * 1000), round(asked_patience_s * 1000)


class Heartbeats:
    """The shared memory in the process that starts `count` ranks. It is removed when this process ends."""

    def __init__(self, count: int) -> None:
        if hasattr(os, "memfd_create"):
            self._file: IO[bytes] = os.fdopen(os.memfd_create("neox-heartbeat"), "w+b")
            self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="neox-heartbeat-")  # noqa: SIM115
            self.path = self._file.name
        self._file.write(bytes(_BYTES * count))
        self._file.flush()
        self._cells = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("q")

    def of(self, local_rank: int) -> Beat:
        """The last report of a rank of this machine."""
        beats, step, patience, asked = self._cells[_CELLS * local_rank : _CELLS * (local_rank + 1)]
        return Beat(beats, step, patience / 1000, asked / 1000)


def _shared(local_rank: int) -> memoryview[int] | None:
    try:
        with Path(os.environ[VARIABLE]).open("r+b") as file:
            cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    except (KeyError, OSError, ValueError):  # nothing watches, or the launcher is gone, or its memory cannot be opened
        return None
    mine = cells[_CELLS * local_rank : _CELLS * (local_rank + 1)]
    return mine if len(mine) == _CELLS else None
