"""Whether a run is running, from the files in its folder. Nothing is locked or written: a start must not fail of it."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from neox_core.errors import NeoxError, UsageError
from neox_core.plan.runfile import STOPPED, UNFINISHED
from neox_core.untrusted import read_object, short
from neox_report.messages import last_start

LOCK = ".run.lock"
LOCKS = Path("/proc/locks")
MOST_REPORTS = 1024
"""Reports of ranks that failed, of which the first in time is shown."""
SILENT_S = 300
"""A run of another machine, whose lock cannot be seen here, is running while it wrote in the last so many seconds."""
_SIGTERM = (-15, 128 + 15)

Name = Literal["running", "stopped", "failed", "finished"]


@frozen
class State:
    """running: the ranks are there. stopped: by a signal. failed: a rank failed, or all were killed. finished: as its
    config says. why: one line, of a failure; "" for the others. age_s: since it last wrote a log step.
    """

    name: Name
    why: str
    age_s: float


def state_of(folder: Path) -> State:
    """The state of the run in a folder that has a run.json."""
    age = time.time() - max(_written(folder / name) for name in ("run.json", "metrics.jsonl"))
    failure = _first_failure(folder)
    unfinished, stopped = (_there(folder / name) for name in (UNFINISHED, STOPPED))
    if _locked(folder / LOCK):  # also after a failure, from which `max-restarts` lets it start again
        return State("running", "", age)
    if failure is not None:
        asked = failure.get("asked") and failure.get("exit_code") in _SIGTERM
        said = "; ".join(filter(None, (short(failure.get("message", "")), short(failure.get("hint", "")))))
        return State("stopped", "", age) if asked else State("failed", said or "a rank failed", age)
    if unfinished and age < SILENT_S and _elsewhere(folder):
        return State("running", "", age)
    if stopped:
        return State("stopped", "", age)
    if unfinished:
        return State("failed", "ended without a report: it was killed, or its machine went down", age)
    return State("finished", "", age)


def _first_failure(folder: Path) -> dict[str, Any] | None:
    def reports() -> Iterator[dict[str, Any]]:
        for path in islice(folder.glob("failure*.json"), MOST_REPORTS):
            with suppress(NeoxError):
                report = read_object(path, UsageError, 1 << 20)
                if path.name == "failure.json":
                    report["time"] = -1.0  # the launcher's own, which wins
                yield report

    def order(report: dict[str, Any]) -> tuple[bool, float]:
        at = report.get("time")
        return bool(report.get("lost_peer")), at if isinstance(at, float) else 0.0

    return min(reports(), key=order, default=None)


def _locked(path: Path) -> bool:
    """Whether a process of this machine holds the lock of the run."""
    try:
        inode = str(path.stat().st_ino)
        with LOCKS.open(encoding="ascii", errors="replace") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return False
    return any(len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode for row in rows)


def _elsewhere(folder: Path) -> bool:
    """Whether the run says that it is on another machine."""
    host = last_start(folder).get("host")
    return isinstance(host, str) and host != platform.node()


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False
    return True
