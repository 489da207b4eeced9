"""Launchers by mpirun: one agent on each host of the plan. Light: runs on the host.

mpirun starts the agents and nothing else: ranks meet and talk as they do under every launcher, not over MPI. Every host
has to see the run's folder, this Python and the dataset under the same paths.
"""

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
    """The plan's ranks on its hosts by Open MPI; on a single host that is this machine, as `local` does it."""
    hosts = _hosts(plan)
    one_each = ("-n", str(len(hosts)), "--host", ",".join(hosts), "--map-by", "ppr:1:node", "--bind-to", "none")
    variables = tuple(word for name, value in _variables(plan).items() for word in ("-x", f"{name}={value}"))
    return _launch(plan, run_file, settings, (*one_each, "--wdir", str(Path.cwd()), *variables))


def hydra(plan: RunPlan, run_file: Path, settings: LauncherSettings) -> LaunchCommand:
    """The same by Hydra, which is the mpirun of MVAPICH, of MPICH and of Intel MPI."""
    hosts = _hosts(plan)
    one_each = ("-n", str(len(hosts)), "-ppn", "1", "-hosts", ",".join(hosts))
    variables = tuple(word for name, value in _variables(plan).items() for word in ("-genv", name, value))
    return _launch(plan, run_file, settings, (*one_each, "-wdir", str(Path.cwd()), *variables))


def _launch(plan: RunPlan, run_file: Path, settings: LauncherSettings, options: tuple[str, ...]) -> LaunchCommand:
    hosts = _hosts(plan)
    if len(hosts) == 1 and is_here(hosts[0]):
        return local(plan, run_file, settings)
    log_dir = logs(run_file, settings)
    agent = (sys.executable, "-m", "neox_launchers.elastic", str(run_file), str(log_dir), "mpi")
    here = (sys.executable, "-m", "neox_launchers.hosts", str(run_file), str(log_dir))
    return LaunchCommand((*here, "mpirun", *options, *agent))


def _hosts(plan: RunPlan) -> list[str]:
    return [host.name for host in plan.cluster.hosts]


def _variables(plan: RunPlan) -> dict[str, str]:
    return exported(os.environ) | environment(plan)
