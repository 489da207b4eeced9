"""What commands about plans share: notes and warnings on stderr, where they leave the output alone, and options."""

import sys
from collections.abc import Iterable

import click

from neox_core.config.problem import Problem
from neox_core.config.report import render
from neox_core.terminal import echo, wants_colour

ON = click.option(
    "--on", "cluster", metavar="HOSTSxGPUS", help="As if on such a cluster, 12x8, instead of on this machine."
)

RESUME = click.option(
    "--resume",
    type=click.Choice(["must", "auto"]),
    default="must",
    show_default=True,
    help="must: `load`, where it is set, must hold a checkpoint. auto: resume from what the run has saved in `save`, "
    "else from `load`; start anew when both hold none.",
)


def say(notes: Iterable[Problem]) -> None:
    """One line each; nothing when there are none."""
    text = render(notes, colour=wants_colour(sys.stderr))
    if text:
        echo(text, err=True)
