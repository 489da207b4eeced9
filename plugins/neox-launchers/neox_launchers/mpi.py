"""Launchers by mpirun: one agent on each host of the plan. Light: runs on the host.

mpirun starts the agents and nothing else: ranks meet and talk as they do under every launcher, not over MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import Words, names, one_each
from neox_launchers.settings import HostSettings


def openmpi(plan: RunPlan, run_file: Path, settings: HostSettings) -> LaunchCommand:
    """The plan's ranks on its hosts by Open MPI; on a single host that is this machine, as `local` does it."""
    hosts = names(plan)
    places = ("-n", str(len(hosts)), "--host", ",".join(hosts), "--map-by", "ppr:1:node", "--bind-to", "none")

    def start(agent: Words, env: Mapping[str, str]) -> Words:
        variables = tuple(word for name, value in env.items() for word in ("-x", f"{name}={value}"))
        return ("mpirun", *places, "--wdir", str(Path.cwd()), *variables, *agent, "mpi")

    return one_each(plan, run_file, settings, start)


def hydra(plan: RunPlan, run_file: Path, settings: HostSettings) -> LaunchCommand:
    """The same by Hydra, which is the mpirun of MVAPICH, of MPICH and of Intel MPI. It alone forwards all."""
    hosts = names(plan)
    places = ("-n", str(len(hosts)), "-ppn", "1", "-hosts", ",".join(hosts))

    def start(agent: Words, env: Mapping[str, str]) -> Words:
        variables = tuple(word for name, value in env.items() for word in ("-genv", name, value))
        return ("mpirun", *places, "-wdir", str(Path.cwd()), "-genvnone", *variables, *agent, "mpi")

    return one_each(plan, run_file, settings, start)
