"""What a plan has to say beside itself: warnings and notes, on stderr, where they leave the output alone."""

import sys
from collections.abc import Iterable

import click

from neox_core.config.problem import Problem
from neox_core.config.report import render, wants_colour


def say(notes: Iterable[Problem]) -> None:
    """One line each; nothing when there are none."""
    text = render(notes, colour=wants_colour(sys.stderr))
    if text:
        click.echo(text, err=True)
