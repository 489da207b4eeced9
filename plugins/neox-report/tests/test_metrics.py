"""What is kept of a series and of a file, against numpy and the file itself; hostile lines."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from neox_author.testing import assert_light
from neox_report.metrics import MOST_REFUSED, Metrics, last_values
from neox_report.thinned import MOST, Thinned


def test_listing_is_light() -> None:
    assert_light("neox-report")


@pytest.mark.parametrize("count", [1, 2, MOST, MOST + 1, 100_003])
def test_a_long_series_keeps_its_ends_and_what_sticks_out(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    series = Thinned()
    for place, value in enumerate(values):
        series.add(10 * place, float(place), float(value))
    points = series.points()
    assert len(points) <= 3 * MOST + 1
    assert (series.count, series.gaps) == (count, 0)
    assert series.low is not None
    assert series.high is not None
    assert (series.low[3], series.high[3]) == (values.min(), values.max())
    kept = np.array([point[3] for point in points])
    assert np.array_equal(kept, values[[point[0] for point in points]])  # real points, in their order
    assert all(point[1] == 10 * point[0] for point in points)
    assert (kept[0], kept[-1]) == (values[0], values[-1])
    size = max(1, 2 ** math.ceil(math.log2(count / MOST)))
    for first in range(0, count, size):
        part = values[first : first + size]
        assert {part.min(), part.max()} <= set(kept)


def test_of_a_long_series_a_single_nan_is_seen() -> None:
    series = Thinned()
    for place in range(50_000):
        series.add(place, 0.0, math.nan if place == 31_415 else 1.0)
    assert series.gaps == 1
    assert [point[0] for point in series.points() if math.isnan(point[3])] == [31_415]


def test_a_growing_file_is_read_on_and_a_replaced_one_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.refresh()
    assert metrics.lines == 0
    with path.open("w") as file:
        file.write('{"step": 1, "time": 1.0, "loss": 5.0}\n{"step": 2, "time": 2.0, "lo')
        file.flush()
        metrics.refresh()
        assert metrics.lines == 1
        file.write('ss": 4.0}\n')
    metrics.refresh()
    assert [point[3] for point in metrics.series["loss"].points()] == [5.0, 4.0]
    new = tmp_path / "new"
    new.write_text('{"step": 1, "time": 1.0, "loss": 7.0}\n' * 5)
    new.replace(path)
    metrics.refresh()
    assert [point[3] for point in metrics.series["loss"].points()] == [7.0] * 5


HOSTILE = (
    "[" * 50_000,
    "not json",
    "[]",
    "7",
    '{"step": "1", "time": 1.0}',
    '{"step": true, "time": 1.0}',
    '{"step": -1, "time": 1.0}',
    '{"step": 1}',
    '{"step": 1, "time": 1e300}',
    '{"step": 1, "time": NaN}',
    '{"step": 1, "time": 1.0, "loss": "' + "x" * 200_000 + '"}',
)


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_line_that_is_no_log_step_is_counted_and_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    good = '{"step": 3, "time": 3.0, "loss": 2.5}\n'
    path.write_text(f"{good}{line}\n{good}")
    metrics = Metrics(path)
    metrics.refresh()
    assert (metrics.lines, metrics.refused, [*metrics.series]) == (2, 1, ["loss"])
    assert last_values(path) == (3, {"step": 3.0, "time": 3.0, "loss": 2.5})


def test_names_and_values_of_a_hostile_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 1, "time": 1.0, f"name{number}": 1.0} for number in range(1000)]
    lines += [{"step": 1, "time": 1.0, "<b>": 1.0, "text": "1", "big": 10**400, "list": [1], "true": True, "": 2.0}]
    path.write_text("".join(json.dumps(each) + "\n" for each in reversed(lines)))
    metrics = Metrics(path)
    metrics.refresh()
    assert len(metrics.series) == 200
    assert [name for name in metrics.series if not name.startswith("name")] == ["big"]
    assert metrics.series["big"].gaps == 1


def test_the_rest_of_what_is_not_the_log_of_a_run_is_not_read(tmp_path: Path) -> None:
    """200 GiB without a line (a sparse file), and lines without end that are not log steps."""
    path = tmp_path / "metrics.jsonl"
    for many in (b"", b"\n" * 300_000):
        path.unlink(missing_ok=True)
        path.write_bytes(many)
        os.truncate(path, 200 << 30)
        metrics = Metrics(path)
        metrics.refresh()
        assert metrics.cut
        assert metrics.refused <= MOST_REFUSED + 1
        metrics.refresh()
        assert metrics.lines == 0


def test_starts_and_rewinds(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    start = {"startup_host_s": 0.5, "startup_launch_s": 1.5, "startup_total_s": 2.0}
    rewind = {"rewound_from": 30.0, "skipped_first_sample": 160.0, "skipped_last_sample": 239.0}
    lines = [
        {"step": 1, "time": 9.0, **start},
        {"step": 20, "time": 11.0, **rewind},
        {"step": 21, "time": 12.0, **start},
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    metrics = Metrics(path)
    metrics.refresh()
    assert [(each.step, dict(each.parts), each.total) for each in metrics.starts] == [
        (1, {"host": 0.5, "launch": 1.5}, 2.0),
        (21, {"host": 0.5, "launch": 1.5}, 2.0),
    ]
    (found,) = metrics.rewinds
    assert (found.step, found.came_from, found.first_sample, found.last_sample) == (20, 30, 160, 239)
    assert metrics.series == {}
