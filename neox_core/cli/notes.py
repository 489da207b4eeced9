"""What commands about plans share: notes and warnings on stderr, where they leave the output alone, and an option."""

import sys
from collections.abc import Iterable

import click

from neox_core.config.problem import Problem
from neox_core.config.report import render, wants_colour

ON = click.option(
    "--on", "cluster", metavar="HOSTSxGPUS", help="As if on such a cluster, 12x8, instead of on this machine."
)


def say(notes: Iterable[Problem]) -> None:
    """One line each; nothing when there are none."""
    text = render(notes, colour=wants_colour(sys.stderr))
    if text:
        click.echo(text, err=True)
