"""How far a long job has come: a live bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.filesize import decimal

from neox_core.terminal import echo

SECONDS_BETWEEN_LINES = 5.0


class Advance(Protocol):
    def __call__(self, num_bytes: int) -> None: ...


@contextmanager
def progress(title: str, total_bytes: int) -> Iterator[Advance]:
    """Yields a function to call with the bytes done since its last call. Everything goes to the standard error."""
    if sys.stderr.isatty():
        from rich import progress as p
        from rich.console import Console

        text, rate, left = p.TextColumn("{task.description}"), p.TransferSpeedColumn(), p.TimeRemainingColumn()
        with p.Progress(text, p.BarColumn(), p.DownloadColumn(), rate, left, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total_bytes)
            yield lambda num_bytes: bar.advance(task, num_bytes)
    else:
        lines = _Lines(title, total_bytes)
        yield lines
        lines.write()


class _Lines:
    def __init__(self, title: str, total_bytes: int) -> None:
        self._title, self._total, self._done = title, total_bytes, 0
        self._started = self._written = time.monotonic()

    def __call__(self, num_bytes: int) -> None:
        self._done += num_bytes
        if time.monotonic() - self._written >= SECONDS_BETWEEN_LINES:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        rate = self._done / max(self._written - self._started, 1e-6)
        left = f", {(self._total - self._done) / rate:.0f} s left" if 0 < self._done < self._total else ""
        done = f"{decimal(self._done)} of {decimal(self._total)}"
        echo(f"{self._title}: {done}, {decimal(round(rate))}/s{left}", err=True)
