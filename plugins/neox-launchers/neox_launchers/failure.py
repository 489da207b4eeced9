"""Which rank failed first, and the report about it. Light."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from neox_core.errors import NeoxError, RankError, in_words
from neox_core.files import replacing

SHUTDOWN_S = 20
"""How long ranks may take to stop once one of them has failed."""
STOP = "stop"
"""File in the folder of a run on several hosts that asks their agents to stop the ranks."""
SECRET = ".hosts"  # noqa: S105 - the name of a file
"""File in the folder of a run on several hosts with the token of the run, which only its user can read."""
FAILED = "failed"
"""The content of `stop` when a host has failed, so that no rank waits for the others."""
MARK = "neox-host"
"""Begins the lines that agents write to the process that started them."""
WHY: Mapping[int, str] = {
    signal.SIGKILL: "; the kernel kills a process in this way when memory runs out",
    signal.SIGBUS: "; so ends one that reads a mapped file, such as a dataset or a library, which was cut meanwhile",
}
CRASHES = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@frozen
class Exit:
    """A rank that did not end well. exit_code as of `subprocess`: negative for a signal.

    noticed_at, ended_at: unix seconds of the clock of its host: this exit; the moment from which the agent ended ranks,
    None if that was the first exit. host, order: number of the host, and its place among those that failed.
    """

    rank: int
    exit_code: int
    noticed_at: float
    host: int = 0
    order: int = 0
    ended_at: float | None = None


@frozen
class HostReport:
    """How one host of several ended. asked: a signal told its agent to stop. lost: silent hosts, and their seconds."""

    node: int
    exits: tuple[Exit, ...] = ()
    asked: bool = False
    lost: Mapping[int, float] = field(factory=dict)
    closed: str = ""


def say_to_first(what: str, words: str = "") -> None:
    """A line from an agent to the process that started it: `MARK here|waiting|met|failed ...`."""
    os.write(2, f"{MARK} {what} {words}\n".encode())


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


def write_report(run_dir: Path, report: HostReport) -> None:
    """node<N>.json: how a host ended, also when its ranks ended well."""
    write_whole(run_dir / f"node{report.node}.json", json.dumps(asdict(report)))


def read_reports(run_dir: Path) -> dict[int, HostReport]:
    """What the hosts that came to an end have written, by their number."""
    found = {}
    for file in sorted(run_dir.glob("node*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        content["exits"] = tuple(Exit(**each) for each in content["exits"])
        content["lost"] = {int(node): seconds for node, seconds in content["lost"].items()}
        found[content["node"]] = HostReport(**content)
    return found


def write_whole(file: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or nothing. Raises OSError."""
    with replacing(file) as new:
        new.write_text(text, encoding="utf-8")


def first_failure(run_dir: Path, exits: Iterable[Exit], *, killed_after: float) -> tuple[int, Exit]:
    """(how sure it is, 0: surely; the exit that came first).

    Ranks that fail because another one is gone do so within the same moment, so time alone does not tell:
    a crash comes first, then what a rank itself reported in failure.rank<N>.json (its
    complaints about lost peers last), then any other exit. Where ranks were ended since one makes no progress, that one
    comes before those that wait. A rank killed `killed_after` seconds or more after its agent began to end ranks was
    killed by the agent. Times are compared within one host only, since the clocks of hosts differ; between hosts
    the order counts in which they told the first one.
    """
    exits = tuple(exits)
    began = dict[int, float]()
    for one in exits:
        since = one.noticed_at if one.ended_at is None else min(one.noticed_at, one.ended_at)
        began[one.host] = min(began.get(one.host, since), since)

    def order(one: Exit) -> tuple[int, int, float]:
        report, killed = _report(run_dir, one.rank), one.noticed_at - began[one.host] >= killed_after - 1
        said_at = float(report.get("time", one.noticed_at))
        if report.get("stalled"):
            return (4 if report.get("lost_peer") else 0), one.order, said_at
        if one.exit_code == -signal.SIGTERM or (one.exit_code == -signal.SIGKILL and killed):
            return 5, one.order, one.noticed_at
        if -one.exit_code in CRASHES:
            return 0, one.order, one.noticed_at
        if report:
            return (4 if report.get("lost_peer") else 1), one.order, said_at
        return (2 if one.exit_code < 0 else 3), one.order, one.noticed_at

    cause = min(exits, key=order)
    return order(cause)[0], cause


def write_failure(
    run_dir: Path,
    exits: Iterable[Exit],
    log_dir: Path,
    *,
    killed_after: float,
    hosts: Sequence[str] = (),
    asked: bool = False,
) -> None:
    """Write failure.json for the rank that failed first. hosts: names, where there are several. asked: by a signal.

    Raises RankError, with what the file would say, where it cannot be written.
    """
    _, cause = first_failure(run_dir, exits, killed_after=killed_after)
    report = _report(run_dir, cause.rank)
    message = report.get("message", "") or _describe(cause.exit_code)
    failure = {
        "rank": cause.rank,
        "exit_code": cause.exit_code,
        "message": f"on host {hosts[cause.host]}: {message}" if hosts else message,
        "hint": report.get("hint", ""),
        "users_mistake": bool(report.get("users_mistake")),
        "log": str(log_dir / f"rank{cause.rank}.log"),
        "asked": asked,
    }
    try:
        write_whole(run_dir / "failure.json", json.dumps(failure, indent=1) + "\n")
    except OSError as error:  # on a full disk, which may have ended the rank too
        said = f"rank {cause.rank}: {failure['message']}; {run_dir}: {error.strerror}, so it could not say more"
        raise RankError(said, hint=failure["hint"] or "make room, then start again with --resume auto") from error


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
    return f"was killed by {name}{WHY.get(-exit_code, '')}"
