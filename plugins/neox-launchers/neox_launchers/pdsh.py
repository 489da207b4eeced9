"""The `pdsh` launcher: one agent on each host of the plan, started over ssh. Light: runs on the host.

From `pdsh-tree-from` hosts on they are a tree: pdsh starts a relay (`relay.py`) on the first host of each part.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from math import isqrt
from pathlib import Path

from attrs import evolve

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import ConfigError
from neox_core.interpreter import python
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import Words, login, names, one_each, settings_of, some
from neox_launchers.host_settings import HostSettings, PdshSettings

FAN_OUT = 16_384
"""Hosts that pdsh talks to at a time; its own 32 would leave the others waiting for the first to end."""
HOSTS_OF_A_WORD = 400
"""A word of a command line has at most 128 KiB, and a name 253 bytes."""
OPTIONS = ("-S", "-N", "-b", "-R", "ssh", "-f", str(FAN_OUT))
OF_SSH = ("PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND")
"""By which a user gives pdsh, and so the relays, options for ssh."""
GO_FLAT = "set `pdsh-tree-from: 0` to log in to all hosts from here"


def pdsh(plan: RunPlan, run_file: Path, settings: PdshSettings) -> LaunchCommand:
    """The plan's ranks on its hosts; on a single host that is this machine, as `local` does it."""
    name = login(plan).get("-l")
    user = ("-l", name) if name else ()  # else pdsh tells ssh the user's name here
    hosts, most, tree = names(plan), HOSTS_OF_A_WORD, parts(plan, settings)
    ssh = {each: os.environ[each] for each in OF_SSH if tree and each in os.environ}
    if tree and settings.launcher_args:
        hint = f"write options of ssh into ~/.ssh/config, or {GO_FLAT}"
        raise ConfigError("launcher-args: most hosts are started by the ssh of others, not by pdsh", hint=hint)
    targets = [hosts[part[0]] for part in tree] or hosts
    groups = (",".join(targets[first : first + most]) for first in range(0, len(targets), most))
    over_ssh = settings.command("pdsh", *OPTIONS, *user, *(word for group in groups for word in ("-w", group)))

    def start(agent: Words, env: Mapping[str, str]) -> Words:
        folder, env = str(Path.cwd()), {**env, **ssh}
        relay = python("neox_launchers.relay", str(run_file), folder, ",".join(env), *agent) if tree else agent
        return (*over_ssh, *remote(relay, env, folder), "%n")

    command = one_each(plan, run_file, settings, start)
    if not tree:
        return command
    note = f"{len(tree)} of {len(hosts)} hosts get a login from here, and log in to the others: {some(targets)}"
    more = f"; all get {', '.join(ssh)}" if ssh else ""
    return evolve(command, notes=(*command.notes, note + more))


def parts(plan: RunPlan, settings: HostSettings) -> list[range]:
    """The numbers of the hosts of each part of a tree, whose first one logs in to the others; [] for no tree."""
    count = len(plan.cluster.hosts)
    if not isinstance(settings, PdshSettings) or not 1 < count >= settings.pdsh_tree_from > 0:
        return []
    size = isqrt(count - 1) + 1
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def hint_of(plan: RunPlan, host: str) -> str:
    """What to do where a relay does not reach a host; "" where this machine logs in to it."""
    hosts = names(plan)
    for first, *others in parts(plan, settings_of(plan)):
        if host in (hosts[each] for each in others):
            return f"{hosts[first]} logs in to {host}: ssh has to work between hosts without a password, or {GO_FLAT}; "
    return ""


def remote(argv: Sequence[str], env: Mapping[str, str], folder: str) -> Words:
    """As `for_shell`, for pdsh, which joins the words, and whose own mark is `%`."""
    return tuple(word.replace("%", "%%") for word in for_shell(argv, env, folder))


def for_shell(argv: Sequence[str], env: Mapping[str, str], folder: str) -> Words:
    """Words to join for the shell of a host: in `folder`, with `env`, exactly `argv`.

    The process takes the place of the shell, so that it is what ends when ssh does.
    """
    pairs = [f"{name}={value}" for name, value in env.items()]
    return ("cd", shlex.quote(folder), "&&", "exec", "env", *(shlex.quote(each) for each in (*pairs, *argv)))
