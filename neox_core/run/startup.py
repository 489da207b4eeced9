"""Measures the time between the command and the first step, and shows in the terminal what the run is doing."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from neox_core.contracts.host import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DOING = {
    "host": "reading the config",
    "launch": "starting the ranks",
    "imports": "importing torch",
    "process_group": "waiting for all ranks",
    "data": "opening the data",
    "model": "building the model",
    "compile": "choosing kernels and compiling optimizers",
    "engine": "starting the engine",
    "load": "looking for a checkpoint",
    "first_step": "first step, which compiles the rest",
}
"""The parts of a start, in order, and their descriptions."""


class Startup:
    """Seconds by part, in order. `began`: when `neox train` started, unix seconds.

    `progress` has the description of the current part. In a terminal a line shows it, between `show` and `hide`.
    """

    def __init__(self, began: float) -> None:
        self.progress = Progress()
        self._began = self._last = began
        self._parts: dict[str, float] = {}
        self._bar: Bar | None = None

    def mark(self, part: str, at: float | None = None) -> None:
        """End `part`, a key of DOING, which started at the last mark; the next part starts."""
        now = time.time() if at is None else at
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now
        following = [*DOING.values(), ""][[*DOING].index(part) + 1]
        self.progress.now(following)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=following, refresh=True)

    def values(self) -> dict[str, float]:
        """`startup_<part>_s` and `startup_total_s`, as they are logged."""
        parts = {f"startup_{part}_s": round(seconds, 3) for part, seconds in self._parts.items()}
        return {**parts, "startup_total_s": round(self._last - self._began, 3)}

    def show(self) -> None:
        """Show the line, where stdout is a terminal."""
        if not sys.stdout.isatty():
            return
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn("line", ""), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        # rich's redirection would replace sys.stdout and sys.stderr, of which a rank keeps the descriptors
        keep: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}
        self._bar = Bar(*columns, console=Console(file=sys.stdout), transient=True, refresh_per_second=4, **keep)
        self._bar.add_task(self.progress.doing, total=None)
        self._bar.start()

    def hide(self) -> None:
        """Remove the line, if there is one, before other code writes to the terminal."""
        if self._bar is not None:
            with suppress(OSError):  # the terminal is closed
                self._bar.stop()
            self._bar = None
