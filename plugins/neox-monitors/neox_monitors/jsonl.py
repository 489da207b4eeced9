"""The `jsonl` monitor: metrics.jsonl, one object a line, and messages.jsonl beside it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neox_core.contracts.host import RunInfo
from neox_core.files import replacing
from neox_monitors.messages import Messages
from neox_monitors.place import require_file, written_to

WAY_OUT = "move it away, or give the run another folder: --run-dir"


class JsonLines:
    """Appends `{"step": int, "time": unix seconds, <name>: value}`; a value that is not finite is null."""

    def __init__(self, run: RunInfo, settings: None) -> None:
        path = run.run_dir / "metrics.jsonl"
        for each in (path, _before(path)):
            require_file(each, WAY_OUT)
        with written_to(path, WAY_OUT):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _keep_until(path, run.first_step)
            self._file = path.open("a", encoding="utf-8")
        self._messages = Messages(run, WAY_OUT)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        record: dict[str, float | None] = {"step": step, "time": round(time.time(), 3)}
        record.update({name: value if math.isfinite(value) else None for name, value in values.items()})
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def say(self, message: str) -> None:
        self._messages.say(message)

    def close(self) -> None:
        self._file.close()
        self._messages.close()


def _keep_until(path: Path, step: int) -> None:
    """Drop what a run wrote after the step it now resumes from, and a last line that was cut off.

    A run that starts at step 0 begins a new file; the old one is kept beside it.
    """
    if step == 0:
        path.replace(_before(path))
        return
    with (
        replacing(path) as new,
        path.open(encoding="utf-8", errors="replace") as lines,
        new.open("w", encoding="utf-8") as kept,
    ):
        kept.writelines(f"{line.rstrip()}\n" for line in lines if _step(line) <= step)


def _before(path: Path) -> Path:
    """Where the file of an earlier run is kept."""
    return path.with_name(f"{path.name}.1")


def _step(line: str) -> float:
    try:
        record: Any = json.loads(line)
        return float(record["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
