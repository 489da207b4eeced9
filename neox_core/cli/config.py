"""`neox config`: check files, show the plan that follows from them, and the keys that exist."""

from __future__ import annotations

from pathlib import Path

import click

from neox_core.cli.diff import diff
from neox_core.cli.notes import ON, RESUME, say
from neox_core.cli.offered import OpenGroup
from neox_core.cli.process import exec_module
from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, as_list, render
from neox_core.contracts.architecture import ModelSize
from neox_core.errors import NeoxError, UsageError
from neox_core.hooks.component import load_path
from neox_core.plan.flat import flat, in_words
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import RunPlan, to_plain
from neox_core.terminal import echo, echo_json, paint

WIDEST = 60
"""Width of the column of values, after which the origins are aligned; a longer value shifts its own origin."""

_FILES = click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
_SETS = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")


@click.group(cls=OpenGroup)
def config() -> None:
    """Check config files, show the plan that follows from them."""


config.add_command(diff)


@config.command()
@_FILES
@_SETS
@ON
@RESUME
@click.option("--json", "as_json", is_flag=True, help="The problems as a JSON list, for editors.")
def check(files: tuple[Path, ...], sets: tuple[str, ...], cluster: str | None, resume: str, as_json: bool) -> None:
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


def _check_as_json(files: tuple[Path, ...], sets: tuple[str, ...], cluster: str | None, resume: str) -> int:
    """Print the list of problems, which may be empty, and return the exit code."""
    problems: tuple[Problem, ...]
    code = 0
    try:
        problems = prepare_run(files, sets, resume=resume, start=False, cluster=cluster, checked=True).notes
    except NeoxError as error:
        code = error.exit_code
        problems = error.problems if isinstance(error, ProblemsError) else (Problem(error.message, hint=error.hint),)
    echo_json(as_list(problems))
    return code


@config.command()
@_FILES
@_SETS
@ON
@click.option("--json", "as_json", is_flag=True, help="Plan, plugins' sections, origins and notes as one JSON object.")
@click.option("--plot-lr", is_flag=True, help="Draw the learning rate by step instead (with plotext).")
@click.option("--attention", is_flag=True, help="Draw which blocks each layer's attention sees instead.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="With --attention: a picture, .png or .svg."
)
def show(
    files: tuple[Path, ...],
    sets: tuple[str, ...],
    cluster: str | None,
    as_json: bool,
    plot_lr: bool,
    attention: bool,
    out: Path | None,
) -> None:
    """Show the plan of a run on this machine, with the sections of plugins, and where each value came from."""
    if out is not None and not attention:
        raise click.UsageError("--out is for the picture of --attention")
    resolved = prepare_run(files, sets, start=False, cluster=cluster)
    if attention:
        say(resolved.notes)
        model = to_plain(resolved.plan)["model"]
        module = load_path(resolved.plan.architecture.planner or "").picture
        if not module:
            raise UsageError(
                f"architecture {resolved.plan.architecture.name} cannot draw its attention", hint="remove --attention"
            )
        picture = None if out is None else str(out)
        exec_module(module, {"model": model, "seed": resolved.plan.train.seed, "out": picture})
    if plot_lr:
        from neox_core.cli.plot import plot_rate

        say(resolved.notes)
        echo("\n".join(plot_rate(resolved.plan)))
        return
    written = [each for each in resolved.sections if each.written]
    if as_json:
        notes = [render([note]) for note in resolved.notes]
        plan = to_plain(resolved.plan)
        sections = {key: value for each in written for key, value in each.values.items()}
        origins = {**resolved.origins, **{key: origin for each in written for key, origin in each.origins.items()}}
        echo_json({"plan": plan, "sections": sections, "origins": origins, "notes": notes})
        return
    say(resolved.notes)
    values = flat(to_plain(resolved.plan))
    rows = [(path, in_words(values[path]), origin) for path, origin in resolved.origins.items()]
    for section in written:
        rows += [(key, in_words(value), section.origins[key]) for key, value in section.values.items()]
    path_width = max(len(path) for path, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= WIDEST)
    for path, value, origin in rows:
        echo(f"{path:<{path_width}}  {value:<{value_width}}  ", paint(origin, "dim"))


def size_in_words(resolved: Resolved) -> str:
    """The number of parameters and the expected memory, in words."""
    if not isinstance(resolved.size, ModelSize):
        return f"size: not known before a start: {resolved.size.reason}"
    return f"size: {resolved.size.in_words()}" + (f"; {resolved.memory.in_words()}" if resolved.memory else "")


def _exports_in_words(resolved: Resolved) -> str:
    fits = [name for name, reason in resolved.exports.items() if not reason]
    if fits:
        return f"exports as {', '.join(fits)}"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in resolved.exports.items())
    return f"exports as nothing, because {reasons or 'no plugin offers a model family'}"


def in_one_line(plan: RunPlan) -> str:
    """The size of a run."""
    model, cluster = plan.model, plan.cluster
    tokens = plan.batch.train_batch * model.seq_length
    ranks = "1 rank" if cluster.world_size == 1 else f"{cluster.world_size} ranks"
    return (
        f"{model.in_short()}, {plan.train.train_iters:,} steps of {tokens:,} "
        f"tokens, {plan.precision.dtype}, {ranks} on {cluster.device}"
    )
