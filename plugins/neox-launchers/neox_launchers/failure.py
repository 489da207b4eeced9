"""Which rank failed first, and the report about it. Light."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from neox_core.errors import NeoxError, in_words

SHUTDOWN_S = 20
"""How long ranks may take to stop once one of them has failed."""
STOP = "stop"
"""File in the folder of a run on several hosts that asks their agents to stop the ranks."""
FAILED = "failed"
"""The content of `stop` when a host has failed, so that no rank waits for the others."""
CRASHES = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@frozen
class Exit:
    """A rank that did not end well. exit_code as of `subprocess`: negative for a signal; noticed_at in unix seconds."""

    rank: int
    exit_code: int
    noticed_at: float


def telling(main: Callable[[], int], run_dir: Path) -> int:
    """Run the process that starts ranks. Errors that a user can fix go to failure.json, which `neox train` reports."""
    try:
        return main()
    except (NeoxError, OSError, MemoryError) as error:
        told = in_words(error)
        if told is None:
            raise
        failure = {"exit_code": told.exit_code, "message": told.message, "hint": told.hint, "users_mistake": True}
        try:
            write_whole(run_dir / "failure.json", json.dumps(failure))
        except OSError:
            raise error from None
        return told.exit_code


def clear_failures(run_dir: Path) -> None:
    """Forget what an earlier run in this folder left behind."""
    names = ("failure.json", "failure.rank*.json", "node*.json", STOP)
    for file in (each for name in names for each in run_dir.glob(name)):
        file.unlink(missing_ok=True)


def write_exits(run_dir: Path, node: int, exits: Iterable[Exit]) -> None:
    """node<N>.json: the ranks of one host that did not end well; none when all did."""
    write_whole(run_dir / f"node{node}.json", json.dumps([asdict(each) for each in exits]))


def read_exits(run_dir: Path) -> tuple[Exit, ...]:
    """What the hosts that came to an end have written."""
    files = sorted(run_dir.glob("node*.json"))
    return tuple(Exit(**each) for file in files for each in json.loads(file.read_text(encoding="utf-8")))


def write_whole(file: Path, text: str) -> None:
    """So that a reader sees all of it or nothing."""
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def write_failure(run_dir: Path, exits: Iterable[Exit], log_dir: Path, *, killed_after: float) -> None:
    """Write failure.json for the rank that failed first.

    Ranks that fail because another one is gone do so within the same moment, so time alone does not tell:
    a crash comes first, then what a rank itself reported in failure.rank<N>.json (by its own clock, and its
    complaints about lost peers last), then any other exit. Where ranks were ended since one makes no progress, that one
    comes before those that wait. A rank killed `killed_after` seconds or more after the
    first exit was killed by the launcher itself.
    """
    exits = tuple(exits)
    first = min(one.noticed_at for one in exits)
    reports = {one.rank: _report(run_dir, one.rank) for one in exits}

    def order(one: Exit) -> tuple[int, float]:
        report, stopped = reports[one.rank], one.noticed_at - first >= killed_after - 1
        if report.get("stalled"):
            return (4 if report.get("lost_peer") else 0), float(report.get("time", one.noticed_at))
        if one.exit_code == -signal.SIGTERM or (one.exit_code == -signal.SIGKILL and stopped):
            return 5, one.noticed_at
        if -one.exit_code in CRASHES:
            return 0, one.noticed_at
        if report:
            return (4 if report.get("lost_peer") else 1), float(report.get("time", one.noticed_at))
        return (2 if one.exit_code < 0 else 3), one.noticed_at

    cause = min(exits, key=order)
    report = reports[cause.rank]
    failure = {
        "rank": cause.rank,
        "exit_code": cause.exit_code,
        "message": report.get("message", "") or _describe(cause.exit_code),
        "hint": report.get("hint", ""),
        "users_mistake": bool(report.get("users_mistake")),
        "log": str(log_dir / f"rank{cause.rank}.log"),
    }
    write_whole(run_dir / "failure.json", json.dumps(failure, indent=1) + "\n")


def _report(run_dir: Path, rank: int) -> dict[str, Any]:
    try:
        report = json.loads((run_dir / f"failure.rank{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # it died before it could say anything, or while saying it
    return report if isinstance(report, dict) else {}


def _describe(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    why = "; the kernel kills a process in this way when memory runs out" if exit_code == -signal.SIGKILL else ""
    return f"was killed by {name}{why}"
