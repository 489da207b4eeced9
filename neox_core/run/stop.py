"""Stopping in good order: a signal to any rank stops all ranks after the same step."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from neox_core.terminal import echo

if TYPE_CHECKING:
    from typing_extensions import Self

    from neox_core.parallel.groups import Groups

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STUCK_EXIT_CODE = 128 + signal.SIGTERM


class StopSignal:
    """SIGINT and SIGTERM raise a flag; `poll` tells, once a step, whether any rank has raised its own.

    The ranks agree by an all-reduce on the CPU that is started at one step and read at the next, so no step waits
    for it and no device is synchronised. A rank that was asked to stop and then neither reads a batch nor polls for
    `patience_s` seconds is stuck with a dead peer: it leaves with exit code 143.
    """

    def __init__(self, groups: Groups, patience_s: float = 15.0) -> None:
        self.patience_s = patience_s
        self.asked_by = 0
        self._group = dist.new_group(backend="gloo", timeout=timedelta(hours=12)) if groups.world is not None else None
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._last_alive = time.monotonic()
        self._busy = False
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handlers = {signum: signal.signal(signum, _no_interrupt) for signum in STOP_SIGNALS}
        # The interpreter runs handlers between two bytecodes, which a rank inside a collective never reaches; the
        # byte in the pipe is written by the C handler at once.
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forked)
        self.alive()
        threading.Thread(target=self._watch, name="neox-stop", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Back to the handlers of before. Without an error the ranks take their leave of the last agreement."""
        if kind is None and self._work is not None:
            self._work.wait()
        self._done.set()
        signal.set_wakeup_fd(-1)
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def poll(self) -> bool:
        """Whether to stop, the same on all ranks. Every rank calls it once a step."""
        self.alive()
        if self._group is None:
            agreed = bool(self.asked_by)
        else:
            agreed = False
            if self._work is not None:
                self._work.wait()
                agreed = bool(self._flag[0])
            self._flag = torch.tensor([1 if self.asked_by else 0], dtype=torch.int32)
            self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        if agreed:
            self._done.set()  # what follows is a checkpoint, which takes as long as it takes
        return agreed

    def alive(self) -> None:
        """This rank makes progress: called with every batch, since a step or an evaluation may take long."""
        self._last_alive = time.monotonic()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Inside, the rank writes a checkpoint and is not taken for stuck."""
        self._busy = True
        try:
            yield
        finally:
            self.alive()
            self._busy = False

    def _forked(self) -> None:
        """A data worker is a copy of the rank: it must neither write into its pipe nor outlive a terminate()."""
        if not self._done.is_set():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _watch(self) -> None:
        asked_at = 0.0
        while not self._done.is_set():
            if select.select([self._read], [], [], 0.5)[0]:
                asked = set(os.read(self._read, 512)) & set(STOP_SIGNALS)
                if asked and not self.asked_by:
                    self.asked_by, asked_at = int(min(asked)), time.monotonic()
            waited = time.monotonic() - max(asked_at, self._last_alive)
            if self.asked_by and not self._busy and waited > self.patience_s:
                echo(f"asked to stop, and stuck for {self.patience_s:.0f} s: leaving", err=True)
                os._exit(STUCK_EXIT_CODE)


def _no_interrupt(signum: int, frame: FrameType | None) -> None:
    """In place of KeyboardInterrupt: the watching thread reads the signal from the pipe."""
