"""`python -m neox_launchers.hosts RUN_FILE LOG_DIR COMMAND...`: run pdsh, mpirun or srun, and end every host.

The hosts share the folder of the run: `stop` in it asks their agents to stop the ranks, node<N>.json says how the ranks
of a host ended. What the command and the agents say goes to LOG_DIR/hosts.log. Exit code 0 when all ranks ended well.
After the first failure the hosts have `end-timeout`; then the command and its children are killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import IO, cast

from neox_core.errors import RankError, run_main
from neox_core.interpreter import STOP_SIGNALS
from neox_core.plan.runfile import DIGEST, read_runfile
from neox_launchers.agents import names, settings_of, ssh_options
from neox_launchers.failure import SECRET, STOP, clear_failures, telling, write_whole
from neox_launchers.forwarding import forwarded, remove_private, write_private
from neox_launchers.listening import Listener
from neox_launchers.mpi import require_its_own
from neox_launchers.verdict import judge

LOOK_S = 0.1
TERM_S = 2.0
"""For the command to end by SIGTERM, before it is killed with its children."""
SSH_VARIABLES = ("PDSH_SSH_ARGS_APPEND", "OMPI_MCA_plm_rsh_args", "HYDRA_LAUNCHER_EXTRA_ARGS")
"""By which pdsh, Open MPI and Hydra take options for ssh."""
PATIENT = {"OMPI_MCA_orte_abort_on_non_zero_status": "0", "PRTE_MCA_prte_abort_on_non_zero_status": "0"}
"""By which Open MPI 4 and 5 let the other agents save when one has failed; else it kills them after 1 s."""


def main() -> int:
    """Start the launcher's command, which starts the ranks on all hosts; returns the exit code."""
    run_file, log_dir, argv = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    plan, run_dir = read_runfile(run_file, os.environ.get(DIGEST)), run_file.parent
    settings = settings_of(plan)
    require_its_own(plan.launcher.name, argv[0])
    clear_failures(run_dir)
    _write_token(run_dir)
    write_private(run_dir, forwarded(settings, os.environ).private)
    listener = Listener(run_dir, names(plan), settings, Path(argv[0]).name)

    def ask(signum: int, frame: FrameType | None) -> None:
        listener.asked_at = listener.asked_at or time.monotonic()
        if not (run_dir / STOP).exists():
            write_whole(run_dir / STOP, "asked")

    for signum in STOP_SIGNALS:
        signal.signal(signum, ask)
    log_dir.mkdir(parents=True, exist_ok=True)
    with (log_dir / "hosts.log").open("w", encoding="utf-8") as log:
        process = _start(argv, ssh_options(plan))
        stderr = cast("IO[str]", process.stderr)
        reader = threading.Thread(target=listener.read, args=(stderr, log), daemon=True)
        reader.start()
        overdue = ""
        while process.poll() is None and not overdue:
            time.sleep(LOOK_S)
            overdue = listener.look(time.monotonic())
            if listener.met:
                remove_private(run_dir)
        remove_private(run_dir)
        if overdue:
            _end(process)
        reader.join(LOOK_S if overdue else TERM_S)  # a child that is left may hold the pipe open
    return judge(plan, run_dir, log_dir, process.returncode, listener, overdue)


def _write_token(run_dir: Path) -> None:
    """A new token of this run, for its user alone."""
    file = run_dir / SECRET
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(secrets.token_hex(16))


def _start(argv: list[str], options: str) -> subprocess.Popen[str]:
    ssh = {name: " ".join(filter(None, (os.environ.get(name), options))) for name in SSH_VARIABLES}
    env, quiet, read = os.environ | PATIENT | ssh, subprocess.DEVNULL, subprocess.PIPE
    try:
        return subprocess.Popen(argv, env=env, stdin=quiet, stderr=read, text=True, errors="replace")
    except OSError as error:
        hint = f"install {argv[0]}, or set `launcher-program`"
        raise RankError(f"cannot start {argv[0]}: {error.strerror}", hint=hint) from error


def _end(process: subprocess.Popen[str]) -> None:
    """End the command, and what it has started here."""
    children = descendants(process.pid)
    process.terminate()
    try:
        process.wait(TERM_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def descendants(pid: int) -> list[int]:
    """Processes that `pid` and its children have started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(encoding="utf-8").rpartition(") ")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


if __name__ == "__main__":
    run_main(lambda: telling(main, Path(sys.argv[1]).parent))
