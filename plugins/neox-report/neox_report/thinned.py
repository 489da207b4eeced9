"""A series of numbers in bounded memory: of many points those that a picture needs."""

from __future__ import annotations

import math
from typing import Any

from attrs import define, field

Point = tuple[int, int, float, float]
"""Place in the file, step, time in unix seconds, value."""
MOST = 600
"""Parts of a series; each shows its lowest and its highest point."""


@define(eq=False)
class Thinned:
    """Of each of at most MOST equal parts of a series, the lowest point, the highest, and whether one was not finite.

    Numbers of all points, also those that are not kept: count, gaps (not finite), first, last, low, high.
    """

    count: int = 0
    gaps: int = 0
    first: Point | None = None
    last: Point | None = None
    low: Point | None = None
    high: Point | None = None
    _size: int = 1
    _parts: list[list[Any]] = field(factory=list)  # [points, lowest, highest, the last that was not finite]

    def add(self, step: int, time: float, value: float) -> None:
        """Add the next point; one that is not finite is a gap."""
        point = (self.count, step, time, value)
        self.count += 1
        parts = self._parts
        if not parts or parts[-1][0] == self._size:
            if len(parts) == MOST:
                self._halve()
            if not parts or parts[-1][0] == self._size:
                parts.append([0, None, None, None])
        part = parts[-1]
        part[0] += 1
        if not math.isfinite(value):
            self.gaps += 1
            part[3] = point
            return
        if part[1] is None or value < part[1][3]:
            part[1] = point
        if part[2] is None or value > part[2][3]:
            part[2] = point
        if self.low is None or self.high is None:
            self.first = self.low = self.high = point
        elif value < self.low[3]:
            self.low = point
        elif value > self.high[3]:
            self.high = point
        self.last = point

    def points(self) -> list[Point]:
        """At most 3 x MOST + 1 points in their order; nan is a gap."""
        chosen = {point for part in self._parts for point in part[1:] if point is not None and math.isfinite(point[3])}
        gaps = {part[3] for part in self._parts if part[3] is not None}
        ends = {point for point in (self.first, self.last) if point is not None}
        return sorted(chosen | gaps | ends, key=lambda point: point[0])

    def _halve(self) -> None:
        """Join each two neighbouring parts, which frees half of the places."""
        joined = []
        for at in range(0, len(self._parts), 2):
            pair = self._parts[at : at + 2]
            lows = [part[1] for part in pair if part[1] is not None]
            highs = [part[2] for part in pair if part[2] is not None]
            gaps = [part[3] for part in pair if part[3] is not None]
            joined.append(
                [
                    sum(part[0] for part in pair),
                    min(lows, key=lambda point: point[3], default=None),
                    max(highs, key=lambda point: point[3], default=None),
                    gaps[-1] if gaps else None,
                ]
            )
        self._parts[:] = joined
        self._size *= 2
