"""`neox checkpoint import, import-neox, inspect`. Another process does what needs torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from attrs import asdict

from neox_core.cli.process import exec_module


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    out = click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write, new or empty.")
    config = click.option(
        "--config",
        "configs",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of the run's config, once for each; by default those beside the checkpoint.",
    )
    no_optimizer = click.option("--no-optimizer", is_flag=True, help="Import the weights alone.")
    as_json = click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
    return out(config(no_optimizer(as_json(command))))


@click.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--format", "form", help="Format of the folder. Default: the one that recognises it.")
@_options
def import_any(
    folder: Path, out: Path, configs: tuple[Path, ...], no_optimizer: bool, as_json: bool, form: str | None
) -> None:
    """Write the checkpoint in FOLDER as one of neox, and OUT/config.yml, to continue the training.

    Nothing in FOLDER is executed. Continue with `neox train OUT/config.yml --set load=OUT`, on any number of ranks.
    """
    _import(folder, out, configs, no_optimizer, as_json, form)


@click.command("import-neox")
@click.argument("folder", type=click.Path(path_type=Path))
@_options
def import_neox(folder: Path, out: Path, configs: tuple[Path, ...], no_optimizer: bool, as_json: bool) -> None:
    """Write the checkpoint of GPT-NeoX in FOLDER as one of neox, and OUT/config.yml, to continue the training.

    FOLDER: what GPT-NeoX's config calls `save`, or one global_stepN in it. Weights, fp32 copies, the optimizer's state,
    the loss scale, the schedule and the place in the data come over; nothing in FOLDER is executed.
    """
    _import(folder, out, configs, no_optimizer, as_json, "neox")


def _import(
    folder: Path, out: Path, configs: tuple[Path, ...], no_optimizer: bool, as_json: bool, form: str | None
) -> None:
    arguments = {
        "folder": str(folder),
        "out": str(out),
        "configs": [str(each) for each in configs],
        "optimizer": not no_optimizer,
        "format": form,
        "as_json": as_json,
    }
    exec_module("neox_checkpoints.importing", arguments)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
def inspect(folder: Path, as_json: bool) -> None:
    """Say what FOLDER is (a checkpoint of neox, GPT-NeoX, transformers, or DeepSpeed), and what would become of it."""
    from neox_checkpoints.inspecting import describe
    from neox_core.hooks.loader import load_plugins
    from neox_core.terminal import echo, echo_json

    found = describe(folder, load_plugins())
    if as_json:
        echo_json(asdict(found))
        return
    for line in found.lines:
        echo(line)
