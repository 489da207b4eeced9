"""`neox config show`: the plan that follows from files, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import click

from neox_core.cli.notes import FILES, ON, SETS, say
from neox_core.cli.offered import loaded
from neox_core.cli.process import exec_module
from neox_core.config.report import render
from neox_core.errors import UsageError
from neox_core.hooks.component import load_path
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_plain
from neox_core.terminal import echo, echo_json, paint
from neox_reference.flat import flat, in_words
from neox_reference.origins import find_origins, section_rows

WIDEST = 60
"""Width of the column of values, after which the origins are aligned; a longer value shifts its own origin."""


@click.command()
@FILES
@SETS
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
    resolved = prepare_run(files, sets, catalog=loaded(), start=False, cluster=cluster)
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
        from neox_reference.plot import plot_rate

        say(resolved.notes)
        echo("\n".join(plot_rate(resolved.plan)))
        return
    written = [each for each in section_rows(resolved) if each.written]
    known = find_origins(resolved, cluster)
    if as_json:
        notes = [render([note]) for note in resolved.notes]
        plan = to_plain(resolved.plan)
        sections = {key: value for each in written for key, value in each.values.items()}
        origins = {**known, **{key: origin for each in written for key, origin in each.origins.items()}}
        echo_json({"plan": plan, "sections": sections, "origins": origins, "notes": notes})
        return
    say(resolved.notes)
    values = flat(to_plain(resolved.plan))
    rows = [(path, in_words(values[path]), origin) for path, origin in known.items()]
    for section in written:
        rows += [(key, in_words(value), section.origins[key]) for key, value in section.values.items()]
    path_width = max(len(path) for path, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= WIDEST)
    for path, value, origin in rows:
        echo(f"{path:<{path_width}}  {value:<{value_width}}  ", paint(origin, "dim"))
