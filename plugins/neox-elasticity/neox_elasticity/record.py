"""The record of an elastic run's changes: elastic.jsonl in its folder, with the seconds that each cost. Light."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

FILE = "elastic.jsonl"
END = 1 << 16
"""Bytes at the end of metrics.jsonl that are looked at."""


@frozen
class Mark:
    """A record of metrics.jsonl: finished steps, unix seconds."""

    step: int
    time: float


@define(eq=False)
class Record:
    """The changes of one run. `before`: the last step before a change that the run has not made up for yet."""

    folder: Path
    before: Mark | None = field(default=None, init=False)

    def note(self, event: str, **values: Any) -> None:
        """Add a line to elastic.jsonl."""
        line = {"time": round(time.time(), 3), "event": event, **values}
        with (self.folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def interrupted(self) -> None:
        """Keep how far the run has come; a change before it has made up for the last one counts to the same loss."""
        self.before = self.before or last_mark(self.folder / "metrics.jsonl")

    def lost_s(self) -> float | None:
        """Seconds between the last step before the change and the first one beyond it; None before there is one.

        They hold the end of the old ranks, the start of the new ones, and the steps that were made again.
        """
        now = last_mark(self.folder / "metrics.jsonl") if self.before is not None else None
        if now is None or self.before is None or now.step <= self.before.step:
            return None
        lost, self.before = now.time - self.before.time, None
        return lost


def last_mark(metrics: Path) -> Mark | None:
    """The last whole record of metrics.jsonl that has a loss; None where there is none, or the file is something else.

    metrics: the file, which a rank may be writing.
    """
    try:
        with metrics.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - END))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((mark for mark in map(_mark, reversed(lines)) if mark is not None), None)


def _mark(line: str) -> Mark | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or "loss" not in record:
        return None
    step, at = record.get("step"), record.get("time")
    return Mark(step, float(at)) if type(step) is int and isinstance(at, int | float) else None


def restarts_now(folder: Path) -> int:
    """How often the command that starts runs again has done so in this folder; 0 where it does not run."""
    try:
        with (folder / FILE).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - END))
            last = json.loads(file.read().decode("utf-8", errors="replace").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return 0
    number = last.get("restarts") if isinstance(last, dict) and last.get("event") == "start" else None
    return number if type(number) is int else 0


def read_failure(folder: Path) -> Mapping[str, Any]:
    """failure.json of the run; {} where there is none."""
    try:
        failure = json.loads((folder / "failure.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return failure if isinstance(failure, dict) else {}
