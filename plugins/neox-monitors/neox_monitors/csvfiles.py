"""The `csv_monitor` monitor: a CSV file for each value, as DeepSpeed lays them out."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from neox_core.contracts.host import RunInfo
from neox_core.files import replacing
from neox_monitors.events import events
from neox_monitors.place import folder_of, require_file, written_to
from neox_monitors.settings import CsvSettings

WAY_OUT = "set csv_monitor.output_path to another folder"


class CsvFiles:
    """<output_path>/<job_name>/Train_Samples_lr.csv and its like: the columns are `step`, in samples, and the value.

    A resumed run drops the rows after the step that it resumes from; a new run keeps the old file as `.csv.1`.
    """

    def __init__(self, run: RunInfo, settings: CsvSettings) -> None:
        self._samples_per_step = run.samples_per_step
        self._first_sample = run.first_step * run.samples_per_step
        self._folder = folder_of(run, settings.csv_monitor)
        with written_to(self._folder, WAY_OUT):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._begun: set[Path] = set()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in events(values).items():
            path = self._folder / f"{name.replace('/', '_')}.csv"
            if path not in self._begun:
                self._begin(path, name.rpartition("/")[2])
            with path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([step * self._samples_per_step, value])

    def say(self, message: str) -> None:
        """Messages are for people."""

    def close(self) -> None:
        """Nothing is held open between log steps."""

    def _begin(self, path: Path, column: str) -> None:
        self._begun.add(path)
        require_file(path, WAY_OUT)
        rows = []
        if path.exists() and self._first_sample == 0:
            path.replace(path.with_suffix(".csv.1"))
        elif path.exists():
            with path.open(newline="", encoding="utf-8", errors="replace") as file:
                rows = [row for row in csv.reader(file) if self._keeps(row)]
        with replacing(path) as new, new.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["step", column], *rows])

    def _keeps(self, row: list[str]) -> bool:
        """Rows of before the step to resume from; neither the header nor a row that was cut off."""
        return len(row) == 2 and row[0].isdecimal() and int(row[0]) <= self._first_sample
