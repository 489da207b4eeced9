"""Launchers by mpirun: one agent on each host of the plan. Light: runs on the host.

mpirun starts the agents and nothing else: ranks meet and talk as they do under every launcher, not over MPI.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import UsageError
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import Words, names, one_each
from neox_launchers.host_settings import HostSettings

LAUNCHERS = {"Open MPI": ("openmpi",), "Intel(R) MPI": ("impi",), "HYDRA": ("mpich", "mvapich", "impi")}
"""What `mpirun --version` prints, and the launchers that can use such an mpirun."""
ANSWER_S = 10


def openmpi(plan: RunPlan, run_file: Path, settings: HostSettings) -> LaunchCommand:
    """The plan's ranks on its hosts by Open MPI; on a single host that is this machine, as `local` does it."""
    hosts = names(plan)
    places = ("-n", str(len(hosts)), "--host", ",".join(hosts), "--map-by", "ppr:1:node", "--bind-to", "none")

    def start(agent: Words, env: Mapping[str, str]) -> Words:
        variables = tuple(word for name, value in env.items() for word in ("-x", f"{name}={value}"))
        return (*settings.command("mpirun", *places, "--wdir", str(Path.cwd()), *variables), *agent, "mpi")

    return one_each(plan, run_file, settings, start)


def hydra(plan: RunPlan, run_file: Path, settings: HostSettings) -> LaunchCommand:
    """The same by Hydra, the mpirun of MPICH and of MVAPICH. An agent that fails does not end the others at once."""
    return _hydra(plan, run_file, settings, "-disable-auto-cleanup")


def intel(plan: RunPlan, run_file: Path, settings: HostSettings) -> LaunchCommand:
    """The same by Intel's Hydra, which has no such option."""
    return _hydra(plan, run_file, settings)


def _hydra(plan: RunPlan, run_file: Path, settings: HostSettings, *options: str) -> LaunchCommand:
    hosts = names(plan)
    places = ("-n", str(len(hosts)), "-ppn", "1", "-hosts", ",".join(hosts), *options)

    def start(agent: Words, env: Mapping[str, str]) -> Words:
        variables = tuple(word for name, value in env.items() for word in ("-genv", name, value))
        folder = ("-wdir", str(Path.cwd()), "-genvnone")  # without which it would forward all that this process has
        return (*settings.command("mpirun", *places, *folder, *variables), *agent, "mpi")

    return one_each(plan, run_file, settings, start)


def require_its_own(launcher: str, program: str) -> None:
    """Raises UsageError where a launcher by mpirun meets the mpirun of another library, whose options differ."""
    if not any(launcher in each for each in LAUNCHERS.values()):
        return
    try:
        said = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=ANSWER_S
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return  # what is wrong with it, the start says
    found = next((mark for mark in LAUNCHERS if mark.encode() in said), None)
    if found is not None and launcher not in LAUNCHERS[found]:
        library = "MPICH or MVAPICH" if found == "HYDRA" else found
        raise UsageError(
            f"{program} is the mpirun of {library}, which `launcher: {launcher}` cannot start",
            hint=f"set `launcher: {LAUNCHERS[found][0]}`, or `launcher-program` to the path of another mpirun",
        )
