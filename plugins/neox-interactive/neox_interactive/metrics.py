"""`neox_core.metrics`: what the monitor `jsonl` has written of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.errors import DataError, UsageError
from neox_core.untrusted import parse_object, short
from neox_interactive.arguments import path_of

if TYPE_CHECKING:
    import pandas as pd

FILE = "metrics.jsonl"
LONGEST_LINE = 1 << 20
"""Bytes of a line."""
MOST_NUMBERS = 100_000_000
"""Of a file, which memory holds."""


def metrics(run: str | Path) -> pd.DataFrame:
    """A row for each step that was logged, a column for each number; NaN where a step has none, or it is not finite.

    run: the folder of a run, or a file metrics.jsonl, also of a run that still trains. `time` is in unix seconds; the
    other units are in docs/monitors.md. A step that was logged again, after a rewind, has the later numbers. Raises
    UsageError without pandas, DataError for a run without the file, or with a line that is not a record.
    """
    if find_spec("pandas") is None:
        raise UsageError("metrics need pandas, which is not installed", hint="pip install pandas")
    import pandas as pd

    path = path_of(run, "metrics: run")
    path = path / FILE if path.is_dir() else path
    rows: dict[int, dict[str, float]] = {}
    count = 0
    for step, values in _records(path):
        rows.setdefault(step, {}).update(values)
        count += len(values)
        if count > MOST_NUMBERS:
            raise DataError(f"{path}: has more than {MOST_NUMBERS:,} numbers", hint="read a part of the file")
    frame = pd.DataFrame.from_dict(rows, orient="index", dtype="float64")
    frame.index.name = "step"
    return frame.sort_index()


def _records(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, numbers by name) of each line. A last line that is being written is left out."""
    if not path.is_file():
        raise DataError(f"{path}: is not there", hint="name the folder of a run that has the monitor jsonl")
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) == LONGEST_LINE:
                    raise DataError(f"{path}:{number}: is longer than {LONGEST_LINE:,} bytes")
                return
            raw = parse_object(line, Path(f"{path}:{number}"), DataError)
            step = raw.pop("step", None)
            wrong = next((name for name, value in raw.items() if not _is_number(value)), None)
            if type(step) is not int or wrong is not None:
                what = f"its step is {json.dumps(step)}" if wrong is None else f"{wrong!r} is {json.dumps(raw[wrong])}"
                raise DataError(f"{path}:{number}: {short(what)}, not a number", hint="move the file away")
            yield step, {name: float("nan") if value is None else float(value) for name, value in raw.items()}


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
