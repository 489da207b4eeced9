"""metrics.jsonl of a run, read line by line, and on from where it was read to while the run writes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from neox_core.errors import UsageError
from neox_core.files import open_file
from neox_report.thinned import Thinned

LONGEST_LINE = 1 << 16
MOST_LINE = 1 << 28
"""Bytes of a line that is too long, whose end is not looked for beyond them."""
MOST_BYTES = 4 << 30
"""Read of a file; a line of a log step has some 500 bytes."""
MOST_REFUSED = 100_000
"""Lines that are not log steps, after which the file is taken for another one."""
MOST_NAMES = 200
MOST_EVENTS = 200
"""Starts, and rewinds, of which the last are kept."""
TAIL = 1 << 18
LATEST = 4e9
"""The time of a line in unix seconds is before the year 2096."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
UNDRAWN = frozenset({"step", "time", "data_hash"})
_REWOUND = ("rewound_from", "skipped_first_sample", "skipped_last_sample")


@frozen
class Start:
    """A process group that has made its first step. parts: seconds by name, in their order."""

    step: int
    time: float
    parts: Mapping[str, float]
    total: float


@frozen
class Rewind:
    """step: where the run has gone back to; then those of `_REWOUND`."""

    step: int
    time: float
    came_from: int
    first_sample: int
    last_sample: int


@define(eq=False)
class Metrics:
    """What a run has written so far.

    refused: lines that are not log steps. cut: whether the rest of the file is not read, of which there
    is too much, or too much that is not log steps.
    """

    path: Path
    series: dict[str, Thinned] = field(factory=dict)
    starts: list[Start] = field(factory=list)
    rewinds: list[Rewind] = field(factory=list)
    lines: int = 0
    refused: int = 0
    cut: bool = False
    step: int = 0
    _read: int = 0
    _file: tuple[int, int] | None = None

    def refresh(self) -> None:
        """Read what was added. A file that another one has replaced, as a resumed run does, is read from its start.

        Raises UsageError where it cannot be read; a file that is not there has no lines.
        """
        try:
            with open_file(self.path) as file:
                found = file.seek(0, 2)
                stat = self.path.stat()
                identity = (stat.st_dev, stat.st_ino)
                if identity != self._file or found < self._read:
                    self._forget(identity)
                file.seek(self._read)
                self._lines(file)
        except FileNotFoundError:
            self._forget(None)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def _lines(self, file: Any) -> None:
        while not self.cut:
            line = file.readline(LONGEST_LINE)
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE:
                    return  # the run is writing it
                self.refused += 1
                end = self._read + MOST_LINE
                while line and not line.endswith(b"\n") and self._read < end:
                    self._read += len(line)
                    line = file.readline(LONGEST_LINE)
            else:
                self._take(line)
            self._read += len(line)
            endless = bool(line) and not line.endswith(b"\n")
            self.cut = endless or self._read > MOST_BYTES or self.refused > MOST_REFUSED

    def _forget(self, identity: tuple[int, int] | None) -> None:
        self.series, self.starts, self.rewinds = {}, [], []
        self.lines, self.refused, self.step, self._read, self._file, self.cut = 0, 0, 0, 0, identity, False

    def _take(self, line: bytes) -> None:
        record = parse_line(line)
        if record is None:
            self.refused += 1
            return
        self.lines += 1
        step, time = record["step"], record["time"]
        self.step = step
        if "startup_total_s" in record:
            parts = {
                name.removeprefix("startup_").removesuffix("_s"): value
                for name, value in numbers(record).items()
                if name.startswith("startup_") and name != "startup_total_s" and math.isfinite(value)
            }
            total = numbers(record)["startup_total_s"]
            self.starts = [*self.starts, Start(step, time, dict(list(parts.items())[:50]), total)][-MOST_EVENTS:]
            return
        if "rewound_from" in record:
            values = [numbers(record).get(name, math.nan) for name in _REWOUND]
            if all(math.isfinite(value) for value in values):
                self.rewinds = [*self.rewinds, Rewind(step, time, *map(int, values))][-MOST_EVENTS:]
            return
        series = self.series
        for name, value in record.items():
            if name in UNDRAWN or not (value is None or type(value) is float or type(value) is int):
                continue
            mine = series.get(name)
            if mine is None:
                if len(series) == MOST_NAMES or not _NAME.fullmatch(name):
                    continue
                mine = series[name] = Thinned()
            mine.add(step, time, math.nan if value is None else _float(value))


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a log step; None for what is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    step, time = record.get("step"), record.get("time")
    if type(step) is not int or not 0 <= step < 1 << 53:
        return None
    if type(time) not in (int, float) or not 0 <= time <= LATEST:  # type: ignore[operator] # of these types
        return None
    return record


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Those of its values that are numbers or null, which is nan."""
    return {
        name: math.nan if value is None else _float(value)
        for name, value in record.items()
        if value is None or type(value) in (int, float)
    }


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of 400 digits
        return math.nan


def last_values(path: Path) -> tuple[int | None, dict[str, float]]:
    """The step of the last line, and the newest value of each name, from the end of the file alone.

    Raises OSError.
    """
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        lines = file.read(TAIL + 1).split(b"\n")
    whole = lines[1 if size > TAIL else 0 : -1]
    step: int | None = None
    values: dict[str, float] = {}
    for line in reversed(whole):
        record = parse_line(line)
        if record is None:
            continue
        step = record["step"] if step is None else step
        values = {**numbers(record), **values}
    return step, values
