"""Launchers by mpirun: one agent on each host of the plan. Light: runs on the host.

mpirun starts the agents and nothing else: ranks meet and talk as they do under every launcher, not over MPI.
"""

from __future__ import annotations

import os
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import names, one_each
from neox_launchers.environment import environment, exported
from neox_launchers.settings import LauncherSettings


def openmpi(plan: RunPlan, run_file: Path, settings: LauncherSettings) -> LaunchCommand:
    """The plan's ranks on its hosts by Open MPI; on a single host that is this machine, as `local` does it."""
    hosts = names(plan)
    places = ("-n", str(len(hosts)), "--host", ",".join(hosts), "--map-by", "ppr:1:node", "--bind-to", "none")
    variables = tuple(word for name, value in _variables(plan).items() for word in ("-x", f"{name}={value}"))
    mpirun = ("mpirun", *places, "--wdir", str(Path.cwd()), *variables)
    return one_each(plan, run_file, settings, lambda agent: (*mpirun, *agent, "mpi"))


def hydra(plan: RunPlan, run_file: Path, settings: LauncherSettings) -> LaunchCommand:
    """The same by Hydra, which is the mpirun of MVAPICH, of MPICH and of Intel MPI."""
    hosts = names(plan)
    places = ("-n", str(len(hosts)), "-ppn", "1", "-hosts", ",".join(hosts))
    variables = tuple(word for name, value in _variables(plan).items() for word in ("-genv", name, value))
    mpirun = ("mpirun", *places, "-wdir", str(Path.cwd()), *variables)
    return one_each(plan, run_file, settings, lambda agent: (*mpirun, *agent, "mpi"))


def _variables(plan: RunPlan) -> dict[str, str]:
    return exported(os.environ) | environment(plan)
