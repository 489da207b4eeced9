"""`neox doctor`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict

from neox_core.errors import UsageError
from neox_core.plan.hosts import read_hostfile
from neox_core.terminal import echo, echo_json, one_line, paint
from neox_doctor.finding import Examined, Finding

if TYPE_CHECKING:
    from neox_doctor.hosts import Asked

COLOURS = {"ok": "green", "warning": "yellow", "fix": "red"}


def _folder(_: click.Context, __: click.Parameter, save: str | None) -> Path | None:
    if save == "":
        raise click.BadParameter("it is empty; name a folder, or . for the current one")
    return None if save is None else Path(save)


@click.command()
@click.option("--hostfile", type=click.Path(path_type=Path), help="Look at every host that it names, over ssh.")
@click.option(
    "--save", type=click.Path(), callback=_folder, help="Folder of checkpoints: its disk is measured with 64 MiB."
)
@click.option(
    "--port", default=29500, show_default=True, type=click.IntRange(1, 65535), help="master_port of the runs."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
def doctor(hostfile: Path | None, save: Path | None, port: int, as_json: bool) -> None:
    """Say what this machine, or every host of a hostfile, lacks for a run.

    Each line is ok, warning (some runs suffer) or fix (a run fails), with what to do. Nothing is changed. The text has
    no secrets, and can be pasted into a bug report. Exits with 1 where something is to be fixed.
    """
    from neox_doctor.machine import examine_machine
    from neox_doctor.software import examine_software

    if hostfile is not None:
        _all_hosts(hostfile, save, port, as_json)
    findings = [*examine_software(), *examine_machine(save, port)]
    if as_json:
        echo_json(asdict(Examined(findings, time.time())))
    else:
        _show(findings)
    sys.exit(_code(findings))


def _all_hosts(hostfile: Path, save: Path | None, port: int, as_json: bool) -> None:
    from neox_doctor.hosts import ask_hosts, differences

    pool, problems = read_hostfile(hostfile)
    if problems:
        first, more = problems[0], f", and {len(problems) - 1:,} more" if problems[1:] else ""
        raise UsageError(": ".join(filter(None, (first.where, first.message))) + more, hint=first.hint)
    options = ("--port", str(port), *(() if save is None else ("--save", str(save))))
    asked: dict[str, Asked] = {}
    for host, answer in ask_hosts(list(pool), options):
        asked[host] = answer
        if not as_json:
            echo(paint(one_line(host), "bold"))
            _show(answer.findings)
    between = list(differences(asked))
    if as_json:
        by_host = {host: [asdict(each) for each in answer.findings] for host, answer in asked.items()}
        echo_json({"hosts": by_host, "between": [asdict(each) for each in between]})
    else:
        echo(paint("between hosts", "bold"))
        _show(between or [_alike(asked)])
    sys.exit(_code([*between, *(each for answer in asked.values() for each in answer.findings)]))


def _alike(asked: Mapping[str, Asked]) -> Finding:
    """What is said of hosts without a difference."""
    answered = sum(each.answered for each in asked.values())
    if answered < 2:
        return Finding("warning", "hosts", f"{answered} of {len(asked)} answered: there is nothing to compare")
    which = f"{answered}" if answered == len(asked) else f"the {answered} of {len(asked)} that answered"
    return Finding("ok", "hosts", f"{which} have the same software, and clocks that agree")


def _show(findings: Iterable[Finding]) -> None:
    for each in findings:
        state = paint(f"{each.state:<8}", COLOURS[each.state])
        echo(state, one_line(f"{each.subject}: {each.found}"))
        if each.hint:
            echo(one_line(f"         {each.hint}"))


def _code(findings: Iterable[Finding]) -> int:
    return int(any(each.state == "fix" for each in findings))
