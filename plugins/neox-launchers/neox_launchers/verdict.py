"""Which host or rank ended a run on several hosts. Light."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neox_core.errors import RankError
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import names, some
from neox_launchers.failure import SHUTDOWN_S, HostReport, first_failure, read_reports, write_failure, write_whole
from neox_launchers.listening import Listener
from neox_launchers.pdsh import hint_of

SURE = 1
"""Of `first_failure`: the rank crashed, hangs, or reported an error of its own."""


def judge(plan: RunPlan, run_dir: Path, log_dir: Path, code: int, listener: Listener, overdue: str) -> int:
    """Report what failed first. Returns the exit code of the command.

    A silent host comes first: its ranks cannot report, and those of the others have lost a peer. Then a rank that
    reported a cause; then a host that ended without a report; then any other rank; then what was said.
    """
    hosts, reports = names(plan), read_reports(run_dir)
    exits = [each for report in reports.values() for each in report.exits]
    if not exits and code == 0 and not overdue and not any(report.lost for report in reports.values()):
        return 0
    log, left = str(log_dir / "hosts.log"), [name for node, name in enumerate(hosts) if node not in reports]
    may_run = f"processes may still run on {some(left)}; " if overdue and left else ""

    def blame(node: int | None, message: str, *, mistake: bool = False, asked: bool = False, hint: str = "") -> int:
        failure: dict[str, Any] = {
            "rank": sum(each.slots for each in plan.cluster.hosts[: node or 0]),
            "exit_code": -15 if asked else RankError.exit_code,
            "message": message,
            "hint": f"{hint}{may_run}see the output of the hosts: {log}",
            "users_mistake": mistake,
            "log": log,
            "asked": asked,
        }
        write_whole(run_dir / "failure.json", json.dumps(failure, indent=1) + "\n")
        return 1

    apart = hosts.index(listener.unreachable) if listener.unreachable in hosts else None
    silent = _silent({node: report for node, report in reports.items() if node != apart})
    if silent is None and apart in reports and reports[apart].lost:  # it has lost the others, as we have lost it
        return blame(apart, f"host {hosts[apart]}: {listener.of(hosts[apart])}", mistake=True)
    if silent is not None:
        node, seconds, closed = silent
        what = f"nothing was heard for {seconds:.0f} s" + (f" ({closed})" if closed else "")
        return blame(node, f"host {hosts[node]}: {what}: it, its network or its agent has failed", mistake=True)
    sure, cause = first_failure(run_dir, exits, killed_after=SHUTDOWN_S) if exits else (99, None)
    lost = listener.lost or listener.unreachable
    gone = lost if lost in left else left[0] if listener.met and len(left) == 1 else None
    if cause is not None and (sure <= SURE or gone is None):
        asked = reports[cause.host].asked or listener.asked_at is not None
        write_failure(run_dir, exits, log_dir, killed_after=SHUTDOWN_S, hosts=hosts, asked=asked)
        return 1
    if gone is not None and listener.met:
        words = listener.of(gone)
        message = f"host {gone}: its agent ended without a report{words and f': {words}'}"
        return blame(hosts.index(gone), message, mistake=True)
    if listener.asked_at is not None or any(each.asked for each in reports.values()):
        return blame(None, "was asked to stop before the hosts had met", asked=True)
    reasons = listener.reasons()
    said = "; ".join(filter(None, (*reasons, overdue) if lost else (overdue, *reasons)))
    if lost not in hosts:
        return blame(None, f"host {lost}: {said}" if lost else said, mistake=True)
    hint = hint_of(plan, lost) if lost in listener.missing() else ""
    if listener.met:  # its agent has reported, since its connection ended
        said = listener.of(lost) or said
    return blame(hosts.index(lost), f"host {lost}: {said}", mistake=True, hint=hint)


def _silent(reports: Mapping[int, HostReport]) -> tuple[int, float, str] | None:
    """(host, seconds, why) that most others have lost; of two that lost each other, the one that wrote no report."""
    lost = [(node, seconds, report.closed) for report in reports.values() for node, seconds in report.lost.items()]
    if not lost:
        return None
    votes = Counter(node for node, _, _ in lost)
    node = max(votes, key=lambda each: (each not in reports, votes[each], each))
    return next(each for each in lost if each[0] == node)
