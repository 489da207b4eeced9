"""`neox config schema` and `neox config docs`: the keys themselves, apart from any config."""

import json
from pathlib import Path

import click

from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo
from neox_reference import json_schema as made
from neox_reference.configuration import document

_OUT = click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; else to the terminal."
)


@click.command()
@_OUT
def schema(out: Path | None) -> None:
    """Write a JSON Schema of the keys of the core and the installed plugins, for editors."""
    _write(json.dumps(made.schema(load_plugins().registry), indent=1) + "\n", out)


@click.command()
@_OUT
def docs(out: Path | None) -> None:
    """Write the reference of all keys of the core and the first-party plugins, as Markdown."""
    _write(document(load_plugins().registry), out)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        echo(text, end="")
    else:
        out.write_text(text, encoding="utf-8")
