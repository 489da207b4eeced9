"""`neox config`: check files. The other commands of the group are plugins'."""

from __future__ import annotations

from pathlib import Path

import click

from neox_core.cli.notes import FILES, ON, RESUME, SETS, say
from neox_core.cli.offered import OpenGroup
from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, as_list
from neox_core.contracts.architecture import ModelSize
from neox_core.errors import NeoxError
from neox_core.plan.exports import exports
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import RunPlan
from neox_core.terminal import echo, echo_json


@click.group(cls=OpenGroup)
def config() -> None:
    """Check config files, show the plan that follows from them."""


@config.command()
@FILES
@SETS
@ON
@RESUME
@click.option("--json", "as_json", is_flag=True, help="The problems as a JSON list, for editors.")
def check(
    files: tuple[Path, ...], sets: tuple[str, ...], cluster: str | None, resume: str | None, as_json: bool
) -> None:
    """Report every problem of FILE... at once, each with its position; exit as `neox train` would when there is an
    error.

    Also report what `neox train` would find before the ranks start: a launcher that does not reach the hosts, and a
    checkpoint in `load` that is missing or does not fit. For a config without errors, print the size of the model,
    the memory that a rank is expected to take, and the formats of its exports.
    """
    if as_json:
        raise SystemExit(_check_as_json(files, sets, cluster, resume))
    resolved = prepare_run(files, sets, resume=resume, start=False, cluster=cluster, checked=True)
    say(resolved.notes)
    echo(f"ok: {', '.join(map(str, files))}: {in_one_line(resolved.plan)}")
    for line in (size_in_words(resolved), _exports_in_words(resolved)):
        echo(line)


def _check_as_json(files: tuple[Path, ...], sets: tuple[str, ...], cluster: str | None, resume: str | None) -> int:
    """Print the list of problems, which may be empty, and return the exit code."""
    try:
        found = prepare_run(files, sets, resume=resume, start=False, cluster=cluster, checked=True)
        problems, code = found.notes, 0
    except NeoxError as error:
        code = error.exit_code
        problems = error.problems if isinstance(error, ProblemsError) else (Problem(error.message, hint=error.hint),)
    echo_json(as_list(problems))
    return code


def size_in_words(resolved: Resolved) -> str:
    """The number of parameters and the expected memory, in words."""
    if not isinstance(resolved.size, ModelSize):
        return f"size: not known before a start: {resolved.size.reason}"
    return f"size: {resolved.size.in_words()}" + (f"; {resolved.memory.in_words()}" if resolved.memory else "")


def _exports_in_words(resolved: Resolved) -> str:
    found = exports(resolved.plan.model, resolved.config, resolved.catalog.registry)
    fits = [name for name, reason in found.items() if not reason]
    if fits[1:] or len(fits) == len(found) == 1:
        return f"exports as {', '.join(fits)}"
    why = "".join(f"\n  {name}: {each}" for name, each in found.items() if each) or " no plugin offers a model family"
    return f"exports as {fits[0] + ' alone' if fits else 'nothing'}, because{why}"


def in_one_line(plan: RunPlan) -> str:
    """The size of a run."""
    model, cluster = plan.model, plan.cluster
    tokens = plan.batch.train_batch * model.seq_length
    ranks = "1 rank" if cluster.world_size == 1 else f"{cluster.world_size} ranks"
    return (
        f"{model.in_short()}, {plan.train.train_iters:,} steps of {tokens:,} "
        f"tokens, {plan.precision.dtype}, {ranks} on {cluster.device}"
    )
