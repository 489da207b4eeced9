"""What commands about plans share: options, and notes and warnings on stderr, which keep stdout clean."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from neox_core.config.problem import Problem
from neox_core.config.read.load import LastWins
from neox_core.config.report import render
from neox_core.terminal import echo, wants_colour


def FILES(command: Any) -> Any:  # noqa: N802 - stands above commands as SETS does
    """FILE..., and how they are read: `-d` and `--last-wins`."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta[f"neox.{parameter.name}"] = value

    def named(context: click.Context, _: click.Parameter, files: tuple[Path, ...]) -> tuple[Path, ...]:
        folder = context.meta["neox.conf_dir"] or Path()
        return (LastWins if context.meta["neox.last_wins"] else tuple)(folder / file for file in files)

    option = partial(click.option, is_eager=True, expose_value=False, callback=keep)
    about = "Folder of FILE..., whose names need no .yml."
    path = click.Path(path_type=Path)
    argument = click.argument("files", nargs=-1, required=True, type=path, metavar="FILE...", callback=named)
    wins = option("--last-wins", is_flag=True, help="Let a later file replace what an earlier one says.")
    return argument(option("-d", "--conf-dir", type=path, help=about)(wins(command)))


SETS = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")

ON = click.option(
    "--on", "cluster", metavar="HOSTSxGPUS", help="As if on such a cluster, 12x8, instead of on this machine."
)

RESUME = click.option(
    "--resume",
    type=click.Choice(["must", "auto"]),
    help="must: `load`, where it is set, must hold a checkpoint. auto: resume from what the run has saved in `save`, "
    "else from `load`; start at step 0 when both hold none. Default: must, and auto where `load` is `save`.",
)


def say(notes: Iterable[Problem]) -> None:
    """Print each note on one line of stderr."""
    text = render(notes, colour=wants_colour(sys.stderr))
    if text:
        echo(text, err=True)
