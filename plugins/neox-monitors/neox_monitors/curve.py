"""A line chart in characters: each cell holds 2 x 4 dots of braille."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bit of each dot: [column][row]
_BLANK = 0x2800


def draw(points: Sequence[Point], marks: Sequence[Point] = (), *, width: int = 64, height: int = 12) -> list[str]:
    """Lines of a chart of `points`, x rising, with an `o` at each of `marks`; the axes carry the extreme values.

    width and height: of the chart without its labels, in characters.
    """
    everything = [*points, *marks]
    left, right = min(x for x, _ in everything), max(x for x, _ in everything)
    bottom, top = min(y for _, y in everything), max(y for _, y in everything)

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - left) / (right - left) if right > left else 0.0
        down = (top - y) / (top - bottom) if top > bottom else 0.5
        return round(across * (2 * width - 1)), round(down * (4 * height - 1))

    cells = [[0] * width for _ in range(height)]
    for column, row in _line([place(x, y) for x, y in points]):
        cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    rows = [[chr(_BLANK + cell) if cell else " " for cell in line] for line in cells]
    for x, y in marks:
        column, row = place(x, y)
        rows[row // 4][column // 2] = "o"
    labels = {0: f"{top:.2f}", height - 1: f"{bottom:.2f}"}
    gutter = max(map(len, labels.values()))
    lines = [f"{labels.get(index, ''):>{gutter}} |{''.join(row).rstrip()}" for index, row in enumerate(rows)]
    start, end = f"{left:g}", f"{right:g}"
    lines.append(f"{'':>{gutter}} +{'-' * width}")
    lines.append(f"{'':>{gutter}}  {start}{end:>{width - len(start)}}")
    return lines


def _line(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dots and all between neighbours, so that the curve has no holes."""
    filled = list(dots[:1])
    for (column, row), (next_column, next_row) in pairwise(dots):
        steps = max(abs(next_column - column), abs(next_row - row), 1)
        for part in range(1, steps + 1):
            filled.append(
                (column + round((next_column - column) * part / steps), row + round((next_row - row) * part / steps))
            )
    return filled
