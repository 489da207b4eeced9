"""Plugins of a test that offer commands."""

from typing import Any

COMMAND = """
import click
from neox_core.errors import DataError

@click.command()
@click.option("--times", default=1)
def hello(times):
    "Say hello."
    click.echo("hello " * times)
    return 7

@click.command()
def fail():
    raise DataError("no file")

@click.command()
@click.argument("how")
def broken(how):
    if how == "usage":
        raise click.UsageError("not so")
    if how == "file":
        open("a" * 300)
    if how == "leave":
        click.get_current_context().exit(9)
    {}["key"]

other = 3
"""
OFFERS = """
from neox_core.api import Component, hookimpl

@hookimpl
def neox_commands():
    return [Component(name, f"PACKAGE.commands:{name}", summary=f"It can {name}.") for name in NAMES]
"""


def offer_commands(site: Any, plugin: str, *names: str) -> None:
    package = plugin.replace("-", "_")
    source = OFFERS.replace("PACKAGE", package).replace("NAMES", repr(names))
    site.install(plugin, source, {f"{package}/commands.py": COMMAND})
