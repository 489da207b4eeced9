"""`python -m neox_launchers.hosts RUN_FILE LOG_DIR COMMAND...`: run pdsh, mpirun or srun, and stop every host.

The hosts share the folder of the run: `stop` in it asks their agents to stop the ranks, node<N>.json says how the ranks
of a host ended. What the command and the agents say goes to LOG_DIR/hosts.log. Exit code 0 when all ranks ended well.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import IO, cast

from neox_core.errors import RankError, run_main
from neox_core.plan.runfile import DIGEST, RunPlan, read_runfile
from neox_launchers.failure import (
    FAILED,
    SHUTDOWN_S,
    STOP,
    clear_failures,
    read_exits,
    telling,
    write_failure,
    write_whole,
)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_A_HOST = re.compile(
    r"pdsh@[^:]*: (?P<pdsh>[^:]+): "
    r"|srun: error: (?P<task>\S+): tasks? "
    r"|srun: error: Node failure on (?P<node>\S+)"
)
"""What pdsh and srun themselves say of a host: that it cannot be reached, or that its agent did not end well."""
KEPT_LINES = 10


def main() -> int:
    run_file, log_dir, argv = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    plan, run_dir = read_runfile(run_file, os.environ.get(DIGEST)), run_file.parent
    clear_failures(run_dir)

    def ask(signum: int, frame: FrameType | None) -> None:
        if not (run_dir / STOP).exists():
            write_whole(run_dir / STOP, "asked")

    for signum in STOP_SIGNALS:
        signal.signal(signum, ask)
    log_dir.mkdir(parents=True, exist_ok=True)
    with (log_dir / "hosts.log").open("w", encoding="utf-8") as log, _start(argv) as process:
        lost, said = _listen(cast("IO[str]", process.stderr), log, run_dir)
    return _judge(plan, run_dir, log_dir, process.returncode, lost, said)


def _start(argv: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise RankError(f"cannot start {argv[0]}: {error.strerror}", hint=f"install {argv[0]}") from error


def _listen(stderr: IO[str], log: IO[str], run_dir: Path) -> tuple[str | None, list[str]]:
    """(first host that failed, the last lines of what was said before). The others are stopped as soon as one has."""
    lost, said = None, list[str]()
    for line in stderr:
        log.write(line)
        log.flush()
        match = _OF_A_HOST.match(line)
        if lost is None:
            said = [*said, line.strip()][-KEPT_LINES:]
        if match and lost is None:
            lost = match[match.lastgroup or 0]
            write_whole(run_dir / STOP, FAILED)
    return lost, said


def _judge(plan: RunPlan, run_dir: Path, log_dir: Path, code: int, lost: str | None, said: list[str]) -> int:
    """Report which rank failed first; where none did, which host, and its last output."""
    exits = read_exits(run_dir)
    if exits:
        write_failure(run_dir, exits, log_dir, killed_after=SHUTDOWN_S)
    elif code != 0:
        names = [host.name for host in plan.cluster.hosts]
        rank = sum(host.slots for host in plan.cluster.hosts[: names.index(lost)]) if lost in names else 0
        reason = [line.removeprefix("error: ") for line in said if not _OF_A_HOST.match(line)] or said
        failure = {
            "rank": rank,
            "exit_code": RankError.exit_code,
            "message": f"host {lost}: {'; '.join(reason)}" if lost else "; ".join(reason),
            "hint": f"see the output of the hosts: {log_dir / 'hosts.log'}",
            "users_mistake": True,
            "log": str(log_dir / "hosts.log"),
        }
        write_whole(run_dir / "failure.json", json.dumps(failure, indent=1) + "\n")
    return 1 if exits or code != 0 else 0


if __name__ == "__main__":
    run_main(lambda: telling(main, Path(sys.argv[1]).parent))
