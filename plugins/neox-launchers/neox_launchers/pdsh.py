"""The `pdsh` launcher: one agent on each host of the plan, started over ssh. Light: runs on the host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import Words, login, names, one_each
from neox_launchers.host_settings import HostSettings

FAN_OUT = 16_384
"""Hosts that pdsh talks to at a time; its own 32 would leave the others waiting for the first to end."""
HOSTS_OF_A_WORD = 400
"""A word of a command line has at most 128 KiB, and a name 253 bytes."""
OPTIONS = ("-S", "-N", "-b", "-R", "ssh", "-f", str(FAN_OUT))


def pdsh(plan: RunPlan, run_file: Path, settings: HostSettings) -> LaunchCommand:
    """The plan's ranks on its hosts; on a single host that is this machine, as `local` does it."""
    name = login(plan).get("-l")
    user = ("-l", name) if name else ()  # else pdsh tells ssh the user's name here
    hosts, most = names(plan), HOSTS_OF_A_WORD
    groups = (",".join(hosts[first : first + most]) for first in range(0, len(hosts), most))
    over_ssh = settings.command("pdsh", *OPTIONS, *user, *(word for group in groups for word in ("-w", group)))

    def start(agent: Words, env: Mapping[str, str]) -> Words:
        return (*over_ssh, *remote(agent, env, str(Path.cwd())), "%n")

    return one_each(plan, run_file, settings, start)


def remote(argv: tuple[str, ...], env: Mapping[str, str], folder: str) -> tuple[str, ...]:
    """Words that pdsh joins for the shell of a host: in `folder`, with `env`, exactly `argv`.

    `%` is pdsh's own mark. The process takes the place of the shell, so that it is what ends when ssh does.
    """
    pairs = [f"{name}={value}" for name, value in env.items()]
    words = ["cd", shlex.quote(folder), "&&", "exec", "env", *(shlex.quote(each) for each in (*pairs, *argv))]
    return tuple(word.replace("%", "%%") for word in words)
