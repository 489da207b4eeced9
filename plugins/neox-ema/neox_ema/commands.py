"""`neox checkpoint average`. Another process does what needs torch."""

from pathlib import Path

import click

from neox_core.cli.process import exec_module


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write, new or empty.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of a line.")
def average(folder: Path, out: Path, as_json: bool) -> None:
    """Write a checkpoint to OUT whose weights are the average that a run with `ema` kept, without an optimizer.

    FOLDER: what the config of the run calls `save`, or one checkpoint in it. `neox generate`, `neox checkpoint
    export-hf` and `neox train` with `finetune: true` take OUT as they take any checkpoint.
    """
    exec_module("neox_ema.export", {"folder": str(folder), "out": str(out), "as_json": as_json})
