"""One agent on each host of a plan, whatever starts it there. Light: runs on the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import ConfigError, UsageError
from neox_core.interpreter import python
from neox_core.plan.hosts import name_of
from neox_core.plan.runfile import DIGEST, RunPlan, digest, read_runfile
from neox_launchers.environment import environment
from neox_launchers.forwarding import forwarded
from neox_launchers.host_settings import HostSettings
from neox_launchers.local import is_here, local, logs

Words = tuple[str, ...]
MOST_NAMES = 20
"""In a message."""


def one_each(
    plan: RunPlan,
    run_file: Path,
    settings: HostSettings,
    start: Callable[[Words, Mapping[str, str]], Words],
    *,
    inherited: bool = False,
) -> LaunchCommand:
    """The plan's ranks on its hosts; on a single host that is this machine, as `local` does it.

    start: the command that runs an agent, given as argv, on every host with these variables, and ends it with a word
    that tells which host it is on. inherited: it takes their values from its own environment. Every host has to see the
    run's folder, this Python and the dataset under the same paths.
    """
    hosts = names(plan)
    if not login(plan) and len(hosts) == 1 and is_here(hosts[0]):
        return local(plan, run_file, settings)
    files = (str(run_file), str(logs(run_file, settings)))
    here, agent = python("neox_launchers.hosts", *files), python("neox_launchers.elastic", *files)
    found = forwarded(settings, os.environ)
    env = found.shown | environment(plan) | {DIGEST: digest(plan)}  # as `neox train` sets it on this host
    return LaunchCommand((*here, *start(agent, env)), env if inherited else {}, found.in_words())


def names(plan: RunPlan) -> list[str]:
    """Of the hosts, without the user and the port of a hostfile."""
    return [name_of(host.name) for host in plan.cluster.hosts]


def some(hosts: Sequence[str]) -> str:
    """Their names, of many the first ones."""
    more = len(hosts) - MOST_NAMES
    return ", ".join(hosts[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def login(plan: RunPlan) -> dict[str, str]:
    """The options of ssh that the hostfile asks for: the user by `-l`, the port by `-p`.

    Raises ConfigError unless they are those of all hosts: mpirun and pdsh have one set of options for ssh.
    """
    found: dict[str, set[str]] = {"-l": set(), "-p": set()}
    for host in plan.cluster.hosts:
        user, _, place = host.name.rpartition("@")
        found["-l"].add(user)
        found["-p"].add(place.partition(":")[2])
    for values in found.values():
        if len(values) > 1:
            said = ", ".join(sorted(each or "none" for each in values))
            raise ConfigError(
                f"hostfile: the hosts have different users or ports for ssh: {said}",
                hint="write one for all hosts, or write them into ~/.ssh/config and the bare names into the hostfile",
            )
    return {option: value for option, (value,) in found.items() if value}


def ssh_options(plan: RunPlan) -> str:
    """By which ssh logs in as the hostfile asks, notices a host that is lost, and names it."""
    limit = settings_of(plan).host_timeout
    alive = f"-oServerAliveInterval={max(1, limit // 4)} -oServerAliveCountMax=3"
    options = (alive, f"-oConnectTimeout={limit}", "-oLogLevel=INFO")
    return " ".join([*options, *(f"{option} {value}" for option, value in login(plan).items())])


def read_plan(run_file: Path, *, shared: bool = True) -> RunPlan:
    """The plan of a run. shared: on a host that may not see the file. Raises UsageError."""
    if shared and not run_file.exists():
        raise UsageError(
            f"{socket.gethostname()} does not see {run_file.absolute()}",
            hint="put the folder of the run on a file system that all hosts share",
        )
    return read_runfile(run_file, os.environ.get(DIGEST))


def settings_of(plan: RunPlan) -> HostSettings:
    """Those of a plan's launcher for several hosts."""
    settings: HostSettings = plan.launcher.load()[1]
    return settings
