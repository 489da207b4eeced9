"""Stops a run at the same step on all ranks, and reports to the launcher that this rank is alive."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from neox_core.errors import RankError, report
from neox_core.heartbeat import Heartbeat
from neox_core.run.exit import leave

if TYPE_CHECKING:
    from typing_extensions import Self

    from neox_core.parallel.agreement import Agreement

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 15.0
"""Seconds that a rank which was asked to stop may make no progress; three times its longest step, if that is more."""
LATE_S = 3.0
SIGNALLED = 2
"""What a rank tells the others that a signal asked to stop, rather than its own `end`; the highest number counts."""
SLOW = 6
"""The first step, an evaluation and a save may take this many times `stall-timeout`."""


class StopSignal:
    """SIGINT and SIGTERM set a flag; `poll` returns, once a step, whether any rank has set its flag.

    The ranks agree on the CPU, from one step to the next, so no step waits for it and no device is synchronised.
    Between two batches or polls a rank may take `stall_timeout_s` (0: no limit), which its heartbeat reports to the
    launcher. A rank that was asked to stop and makes no progress for `patience_s` is stuck, perhaps because a peer is
    gone: if the launcher does not end it, it exits by itself, after it calls `report` with the reason.
    agreement: of several ranks. step: finished. ends: called once a step; whether the run is to end as `end` ends it.
    """

    def __init__(
        self,
        agreement: Agreement | None,
        heartbeat: Heartbeat | None = None,
        *,
        step: int = 0,
        stall_timeout_s: float = 0.0,
        patience_s: float = PATIENCE_S,
        report: Callable[[RankError], None] = lambda error: None,
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        self.heartbeat = heartbeat or Heartbeat()
        self.stall_timeout_s = stall_timeout_s
        self.patience_s = patience_s
        self.asked_by = 0
        self.agreed = False
        self._ended = False
        self._report = report
        self._ends = ends
        self._step, self._first = step, step
        self._longest = 0.0  # longest time in seconds between two beats, since the first step
        self._agreement = agreement
        self._last_alive = time.monotonic()
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handlers = {signum: signal.signal(signum, _no_interrupt) for signum in STOP_SIGNALS}
        # The interpreter runs handlers between two bytecodes, which a rank inside a collective never reaches; the
        # byte in the pipe is written by the C handler at once.
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forked)
        self.heartbeat.reached(self._step)
        self._expect(slow=True)
        self.alive()
        threading.Thread(target=self._watch, name="neox-stop", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the earlier handlers. Without an error the ranks wait for the last agreement."""
        if kind is None and self._agreement is not None:
            self._agreement.finish()
        self.heartbeat.expect(0, 0)
        self._done.set()
        signal.set_wakeup_fd(-1)
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def poll(self) -> bool:
        """Whether to stop, the same on all ranks. Every rank calls it once a step."""
        self.alive()
        self._step += 1
        self.heartbeat.reached(self._step)
        self._expect()
        agreed = SIGNALLED if self.asked_by else int(self._ends() or self._ended)
        if self._agreement is not None:
            agreed = self._agreement.exchange(agreed)
        if agreed:
            self.agreed = agreed == SIGNALLED
            self._done.set()  # a checkpoint follows, which has no time limit
        return bool(agreed)

    def end(self) -> None:
        """End the run at the next step that all ranks agree on, as a signal does; no signal, so it ends well."""
        self._ended = True

    def alive(self) -> None:
        """Report progress of this rank; called with every batch, since a step or an evaluation may take long."""
        now = time.monotonic()
        if self._step > self._first:
            self._longest = max(self._longest, now - self._last_alive)
        self._last_alive = now
        self.heartbeat.beat()

    def evaluating(self) -> None:
        """Report an evaluation until the next poll; a pipeline evaluates all batches in one call."""
        self._expect(slow=True)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Inside the block the rank writes a checkpoint, which it may finish even when it was asked to stop."""
        self._expect(slow=True, saving=True)
        try:
            yield
        finally:
            self._last_alive = time.monotonic()
            self.heartbeat.beat()
            self._expect()

    def _expect(self, *, slow: bool = False, saving: bool = False) -> None:
        """Set how long the next phase may take."""
        patience = self.stall_timeout_s * (SLOW if slow else 1)
        self._patience = patience if saving else max(self.patience_s, 3 * self._longest)
        self.heartbeat.expect(patience, self._patience)

    def _forked(self) -> None:
        """In a data worker, a copy of the rank: do not write into the rank's pipe, and end on terminate()."""
        if not self._done.is_set():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _watch(self) -> None:
        asked_at, poll = 0.0, select.poll()  # select() knows no file beyond the 1,024th
        poll.register(self._read, select.POLLIN)
        while not self._done.is_set():
            if poll.poll(500):
                asked = set(os.read(self._read, 512)) & set(STOP_SIGNALS)
                if asked and not self.asked_by:
                    self.asked_by, asked_at = int(min(asked)), time.monotonic()
            waited, patience = time.monotonic() - max(asked_at, self._last_alive), self._patience
            late = LATE_S if self.heartbeat.watched else 0  # the launcher knows better which rank hangs
            if self.asked_by and 0 < patience < waited - late:
                error = RankError(f"asked to stop, this rank made no progress for {patience:.0f} s: nothing was saved")
                with suppress(OSError):
                    report(error)
                    self._report(error)
                leave(error.exit_code)


def _no_interrupt(signum: int, frame: FrameType | None) -> None:
    """Replaces KeyboardInterrupt: the watching thread reads the signal from the pipe."""
