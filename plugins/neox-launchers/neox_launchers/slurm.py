"""The `slurm` launcher: one agent on each host of an allocation. Light: runs on the host.

srun starts the agents and nothing else: ranks meet and talk as they do under every launcher, not by Slurm's PMI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import ConfigError
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import Words, login, names, one_each
from neox_launchers.host_settings import SlurmSettings

LOGIN = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER")
"""Variables that ssh would set on a host, and srun does not."""


def slurm(plan: RunPlan, run_file: Path, settings: SlurmSettings) -> LaunchCommand:
    """The plan's ranks on its hosts by srun; on a single host that is this machine, as `local` does it.

    srun uses the allocation it finds itself in. A host that fails does not make it kill the others at once: they end
    by themselves and report. What is left after twice `end-timeout`, srun kills.
    """
    hosts = names(plan)
    if login(plan):
        raise ConfigError("hostfile: srun does not use ssh", hint="remove USER@ and :PORT from the lines")
    count = str(len(hosts))
    places = ("--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--nodelist", ",".join(hosts))
    patience = ("--kill-on-bad-exit=0", "--wait", str(2 * settings.end_timeout))
    no_guesses = ("--mpi", "none", "--cpu-bind", "none", *patience)

    said = {"--comment": settings.comment, "--account": settings.account, "--partition": settings.partition}
    more = (word for option, value in said.items() if value is not None for word in (option, value))
    options = (*places, *no_guesses, *more)

    def srun(agent: Words, env: Mapping[str, str]) -> Words:
        exported = ",".join([*(name for name in LOGIN if name in os.environ), *env])
        return (*settings.command("srun", *options, "--export", exported, "--chdir", str(Path.cwd())), *agent, "slurm")

    return one_each(plan, run_file, settings, srun, inherited=True)
