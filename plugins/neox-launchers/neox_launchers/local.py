"""The `local` launcher: returns the process to start and its environment. Light: runs on the host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import ConfigError, UsageError
from neox_core.interpreter import python, require_room
from neox_core.plan.runfile import RunPlan
from neox_launchers.environment import environment
from neox_launchers.settings import LauncherSettings

_TORCH_MIB = 1024


def local(plan: RunPlan, run_file: Path, settings: LauncherSettings) -> LaunchCommand:
    """All ranks on this machine. Raises UsageError when the plan has another host, or torch has no room here."""
    others = [host.name for host in plan.cluster.hosts if not is_here(host.name)]
    if others or len(plan.cluster.hosts) != 1:
        raise UsageError(
            f"the local launcher starts ranks on this machine only; the plan has {len(plan.cluster.hosts)} hosts"
            if len(plan.cluster.hosts) != 1
            else f"the local launcher starts ranks on this machine only, which is not {others[0]}",
            hint="set `launcher: pdsh`, or leave out `hostfile`",
        )
    try:
        require_room(_TORCH_MIB)
    except MemoryError as error:
        raise UsageError(f"torch has no room: {error}", hint="raise the limit: ulimit -v unlimited") from None
    argv = python("neox_launchers.elastic", str(run_file), str(logs(run_file, settings)))
    return LaunchCommand(argv, environment(plan) | {"NEOX_MEET_TIMEOUT_S": str(settings.meet_timeout)})


def logs(run_file: Path, settings: LauncherSettings) -> Path:
    """The folder for rank<N>.log, which is made later. Raises ConfigError where it cannot be."""
    folder = Path(settings.log_dir) if settings.log_dir else run_file.parent / "logs"
    there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    if there != folder and not settings.log_dir:  # the folder of the run; whether it can be written, run.json will say
        if not there.is_dir():
            hint = "set `save` or --run-dir to a folder that can be written"
            raise ConfigError(f"{run_file.parent}: cannot hold the run: {there} is not a folder", hint=hint)
    elif not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        fault = "cannot be written to" if there.is_dir() else "is not a folder"
        raise ConfigError(
            f"{folder}: cannot hold the logs of the ranks: {there} {fault}",
            hint="move it away, or set log-dir to another folder",
        )
    return folder


def is_here(host: str) -> bool:
    """Whether a name is one of this machine's own, as far as can be said without asking the network."""
    name = socket.gethostname()
    return host in {"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]}
