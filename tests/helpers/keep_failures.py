"""Keeps what failed for the end of `make test`."""

import os
from pathlib import Path
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Append what failed to the file NEOX_FAILURES, into which jobs write at the same time."""
    kept = os.environ.get("NEOX_FAILURES")
    if not kept:
        return
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    causes: dict[str, list[str]] = {}
    for report in reports:
        crash = getattr(report.longrepr, "reprcrash", None)
        causes.setdefault(crash.message if crash else str(report.longrepr), []).append(report.nodeid)
    with Path(kept).open("a", encoding="utf-8") as file:
        for cause, tests in causes.items():
            file.write(f"{tests[0]}{f' and {len(tests) - 1} more' if tests[1:] else ''}:\n{cause[-1000:]}\n")
