"""The loss curve as characters."""

from __future__ import annotations

from collections.abc import Sequence

import plotext

Point = tuple[float, float]


def draw(points: Sequence[Point], marks: Sequence[Point] = (), *, width: int = 72, height: int = 16) -> list[str]:
    """Lines of a chart of `points`, a curve, with an `o` at each of `marks`; width and height in characters."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.plot(*zip(*points, strict=True), marker="braille")
    if marks:
        plotext.scatter(*zip(*marks, strict=True), marker="o")
    return [line.rstrip() for line in plotext.uncolorize(plotext.build()).splitlines()]
