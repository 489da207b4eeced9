"""What commands about plans share: options, and notes and warnings on stderr, which keep stdout clean."""

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from neox_core.config.problem import Problem
from neox_core.config.report import render
from neox_core.terminal import echo, wants_colour

FILES = click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
SETS = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")

ON = click.option(
    "--on", "cluster", metavar="HOSTSxGPUS", help="As if on such a cluster, 12x8, instead of on this machine."
)

RESUME = click.option(
    "--resume",
    type=click.Choice(["must", "auto"]),
    default="must",
    show_default=True,
    help="must: `load`, where it is set, must hold a checkpoint. auto: resume from what the run has saved in `save`, "
    "else from `load`; start at step 0 when both hold none.",
)


def say(notes: Iterable[Problem]) -> None:
    """Print each note on one line of stderr."""
    text = render(notes, colour=wants_colour(sys.stderr))
    if text:
        echo(text, err=True)
