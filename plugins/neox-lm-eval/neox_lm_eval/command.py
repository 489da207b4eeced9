"""`neox eval`: scores of a model on tasks of lm-evaluation-harness. A process that may import torch does the work."""

from importlib.util import find_spec
from pathlib import Path

import click
from neox_gpt.api import saved_run

from neox_core.cli.process import exec_module
from neox_core.errors import PluginError, UsageError
from neox_core.hooks.loader import load_plugins


@click.command()
@click.option(
    "--load",
    required=True,
    type=click.Path(readable=False),
    help="A run's `save`, a folder or an address, or one checkpoint in it.",
)
@click.option("--tasks", required=True, help="Names of tasks, groups or tags, separated by commas.")
@click.option(
    "--task-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of more tasks, in YAML. Code that they name is run, as is that of the harness.",
)
@click.option(
    "--num-fewshot", type=click.IntRange(min=0), help="Examples before each question; default: as the task says."
)
@click.option("--limit", type=click.IntRange(min=1), help="Documents of each task; default: all.")
@click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1), help="Texts of a pass.")
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of a table.")
def evaluate(
    load: str,
    tasks: str,
    task_folder: Path | None,
    num_fewshot: int | None,
    limit: int | None,
    batch_size: int,
    device: str,
    as_json: bool,
) -> None:
    """Score the model in a checkpoint on tasks of lm-evaluation-harness, in one process.

    The checkpoint may be of a run in any layout. The scores are those of what `neox checkpoint export-hf` writes.
    """
    names = [name.strip() for name in tasks.split(",")]
    if not all(names):
        raise UsageError("--tasks: a name is empty", hint="write --tasks lambada_openai,piqa")
    if find_spec("lm_eval") is None:
        raise PluginError("lm-evaluation-harness is not installed", hint="pip install lm_eval")
    checkpoint, plan = saved_run(load, load_plugins())
    if plan.data.tokenizer is None:
        raise UsageError(
            f"{checkpoint}: its run had no tokenizer, and lm-evaluation-harness asks in text",
            hint="set tokenizer-type and the tokenizer's files in the config of the run",
        )
    arguments = {
        "load": str(checkpoint),
        "tasks": names,
        "folder": None if task_folder is None else str(task_folder),
        "num_fewshot": num_fewshot,
        "limit": limit,
        "batch_size": batch_size,
        "device": device,
        "as_json": as_json,
    }
    exec_module("neox_lm_eval.main", arguments)
