"""The `openmpi` launcher: one agent on each host of the plan, started by mpirun. Light: runs on the host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.plan.runfile import RunPlan
from neox_launchers.environment import environment, exported
from neox_launchers.local import is_here, local, logs
from neox_launchers.settings import LauncherSettings


def openmpi(plan: RunPlan, run_file: Path, settings: LauncherSettings) -> LaunchCommand:
    """The plan's ranks on its hosts; on a single host that is this machine, as `local` does it.

    mpirun starts the agents and nothing else: ranks meet and talk as they do under every launcher, not over MPI. Every
    host has to see the run's folder, this Python and the dataset under the same paths.
    """
    hosts = [host.name for host in plan.cluster.hosts]
    if len(hosts) == 1 and is_here(hosts[0]):
        return local(plan, run_file, settings)
    log_dir = logs(run_file, settings)
    env = exported(os.environ) | environment(plan)
    one_each = ("-n", str(len(hosts)), "--host", ",".join(hosts), "--map-by", "ppr:1:node", "--bind-to", "none")
    variables = tuple(word for name, value in env.items() for word in ("-x", f"{name}={value}"))
    mpirun = ("mpirun", *one_each, "--wdir", str(Path.cwd()), *variables)
    agent = (sys.executable, "-m", "neox_launchers.elastic", str(run_file), str(log_dir), "mpi")
    return LaunchCommand((sys.executable, "-m", "neox_launchers.hosts", str(run_file), str(log_dir), *mpirun, *agent))
