"""Settings of the launchers that reach other hosts: top-level keys of a config."""

import shlex
from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting
from neox_launchers.settings import LauncherSettings


def _no_option(instance: Any, field: Any, value: str | None) -> None:
    if value is not None and (not value or value.startswith("-")):
        raise ValueError("must be a text that does not begin with -")


def _names(instance: Any, field: Any, value: tuple[str, ...]) -> None:
    for each in value:
        if not (each.isascii() and each.removesuffix("*").isidentifier()):
            raise ValueError("must hold names of variables, or beginnings of names with a * at their end")


def _words(instance: Any, field: Any, value: str) -> None:
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"must be words as a shell takes them: {error}") from None


@frozen
class HostSettings(LauncherSettings):
    """Of the launchers that reach other hosts."""

    launcher_env: tuple[str, ...] = setting(
        (),
        help="Variables that other hosts get besides those that the README of neox-launchers lists: names, or "
        "beginnings such as `AWS_*`. One that looks like a secret has to be named in full.",
        check=_names,
        changes="output",
    )
    launcher_program: str | None = setting(
        None,
        help="Name or path of pdsh, mpirun or srun. Default: the one on the path.",
        check=_no_option,
        changes="output",
    )
    launcher_args: str = setting(
        "",
        help="More options of pdsh, mpirun or srun, such as `--mca btl_tcp_if_include eth0`.",
        check=_words,
        changes="output",
        origin="deepspeed",
    )

    def command(self, program: str, *options: str) -> tuple[str, ...]:
        """The program with these options and then those of the user."""
        return (self.launcher_program or program, *options, *shlex.split(self.launcher_args))


@frozen
class PdshSettings(HostSettings):
    pdsh_tree_from: int = setting(
        512,
        help="From this number of hosts on, this machine logs in to the first host of each part only, and each of them "
        "to the rest of its part, by ssh. A part has about the square root of all hosts. 0: never.",
        unit="hosts",
        check=v.ge(0),
        changes="output",
    )


def _srun(help: str, origin: str = "gpt-neox") -> Any:
    return setting(None, help=help, check=_no_option, changes="output", origin=origin)


@frozen
class SlurmSettings(HostSettings):
    comment: str | None = _srun("Comment on the job step, given to srun.")
    account: str | None = _srun("Account that the job step is charged to, given to srun.")
    partition: str | None = _srun("Partition of the job step, given to srun.", "neox")
