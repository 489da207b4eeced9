"""The `pdsh` launcher: one agent on each host of the plan, started over ssh. Light: runs on the host."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.plan.runfile import RunPlan
from neox_launchers.environment import environment, exported
from neox_launchers.local import is_here, local, logs
from neox_launchers.settings import LauncherSettings

FAN_OUT = 1024
"""Hosts that pdsh talks to at a time; its own 32 would leave the others waiting for the first to end."""


def pdsh(plan: RunPlan, run_file: Path, settings: LauncherSettings) -> LaunchCommand:
    """The plan's ranks on its hosts; on a single host that is this machine, as `local` does it.

    Every host has to see the run's folder, this Python and the dataset under the same paths.
    """
    hosts = [host.name for host in plan.cluster.hosts]
    if len(hosts) == 1 and is_here(hosts[0]):
        return local(plan, run_file, settings)
    log_dir = logs(run_file, settings)
    agent = (sys.executable, "-m", "neox_launchers.elastic", str(run_file), str(log_dir))
    over_ssh = ("pdsh", "-S", "-N", "-b", "-R", "ssh", "-f", str(FAN_OUT), "-w", ",".join(hosts))
    env = exported(os.environ) | environment(plan)
    command = (sys.executable, "-m", "neox_launchers.hosts", str(run_file), str(log_dir), *over_ssh)
    return LaunchCommand((*command, *remote(agent, env, str(Path.cwd())), "%n"))


def remote(argv: tuple[str, ...], env: dict[str, str], folder: str) -> tuple[str, ...]:
    """Words that pdsh joins for the shell of a host: in `folder`, with `env`, exactly `argv`.

    `%` is pdsh's own mark. The process takes the place of the shell, so that it is what ends when ssh does.
    """
    pairs = [f"{name}={value}" for name, value in env.items()]
    words = ["cd", shlex.quote(folder), "&&", "exec", "env", *(shlex.quote(each) for each in (*pairs, *argv))]
    return tuple(word.replace("%", "%%") for word in words)
