"""`neox difficulty`: the index that a curriculum reads."""

from __future__ import annotations

from pathlib import Path

import click

from neox_core.cli.notes import say
from neox_core.cli.process import exec_module
from neox_core.errors import ConfigError
from neox_core.plan.resolve import prepare_run


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")
@click.option("--metric", default="vocabularyrarity", show_default=True, type=click.Choice(["vocabularyrarity"]))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the index.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
def difficulty(files: tuple[Path, ...], sets: tuple[str, ...], metric: str, out: Path, as_json: bool) -> None:
    """Measure how hard each training sample of the run that FILES describe is, in one pass over the data.

    The samples are numbered as in the run: dataset, split, seed and seq-length have to be those of the training.
    """
    resolved = prepare_run(files, [*sets, "data_efficiency=null", "curriculum_learning=null"], folder=out)
    plan = resolved.plan
    say(resolved.notes)
    if plan.data.train:
        raise ConfigError("an index is of one dataset, and train-data-paths names several", hint="set data-path")
    exec_module("neox_curriculum.analyse", {"metric": metric, "out": str(out), "as_json": as_json}, plan)
