"""`neox retrieval`: the index of a trained retriever, searches in it, and how good they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve
from neox_gpt.api import saved_run, teacher_in

from neox_core.cli.notes import FILES, SETS, say
from neox_core.cli.process import exec_module
from neox_core.cli.supervise import Supervisor
from neox_core.errors import ConfigError, UsageError
from neox_core.files import lock
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile
from neox_core.plan.start import launch_command
from neox_retrieval.planner import RetrieverPlan

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

LOAD = click.option(
    "--load",
    required=True,
    type=click.Path(readable=False),
    help="The retriever's `save`, a folder or an address, or a checkpoint.",
)
BLOCKS = click.option(
    "--blocks", type=click.Path(path_type=Path), help="Folder of the vectors. Default: as the run says."
)
EXACT = click.option("--exact", is_flag=True, help="Compare with all vectors on disk, also where FAISS is installed.")
JSON = click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")


@click.command()
@FILES
@SETS
def index(files: tuple[Path, ...], sets: tuple[str, ...]) -> None:
    """Embed all blocks of the documents into block-data-path, over the ranks that FILES describe.

    The retriever is that of ict-load, else that of load, else that of save. A run that was killed continues where it
    was, on any number of ranks.
    """
    from neox_retrieval.indexer import INDEXER

    resolved = prepare_run(files, sets, resume=None)
    say(resolved.notes)
    plan, model = resolved.plan, resolved.plan.model
    if not isinstance(model, RetrieverPlan):
        raise ConfigError("architecture is not retriever", hint="name the config of a retriever")
    given = resolved.config.value("load")
    if model.ict_load is not None and given is not None:
        message = "load and ict-load both name the retriever that makes the index"
        raise ConfigError(message, hint="leave one out, for example with --set load=null")
    if model.index.path is None:
        raise ConfigError("block-data-path is not set", hint="name the folder for the vectors of the blocks")
    source = model.ict_load or given or plan.checkpoint.save
    if source is None:
        raise ConfigError("nothing names the retriever", hint="set ict-load to the folder that its run called save")
    folder = Path(model.index.path)
    plan = evolve(
        plan,
        model=evolve(model, ict_load=str(teacher_in(Path(source))), bert_load=None),
        run_dir=str(folder / "run"),
        train=evolve(plan.train, train_iters=0, eval_iters=0, sample_prompt=None, stall_timeout_s=0),
        checkpoint=evolve(
            plan.checkpoint, save=None, save_interval=None, load=None, resume="auto", extra_save=(), stores=()
        ),
        monitors=(),
        evaluators=(),
        callbacks=(INDEXER,),
    )
    run_file = folder / "run" / "run.json"
    held = _claim(folder)
    try:
        command = launch_command(plan)
        write_runfile(plan, run_file)
        for earlier in run_file.parent.glob("failure*.json"):
            earlier.unlink(missing_ok=True)
        code = Supervisor(command, run_file.parent, plan.launcher.owner).run()
    finally:
        os.close(held)
    raise SystemExit(code)


@click.command()
@click.argument("text")
@LOAD
@BLOCKS
@click.option("-k", "count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Blocks to print.")
@EXACT
@JSON
def search(text: str, load: str, blocks: Path | None, count: int, exact: bool, as_json: bool) -> None:
    """Print the blocks that belong to TEXT, the nearest first: number, inner product, title and text."""
    checkpoint, plan = _saved(load)
    given = {"text": text, "count": count, "exact": exact, "as_json": as_json}
    exec_module("neox_retrieval.ask", {"checkpoint": str(checkpoint), "blocks": _folder(plan, blocks), **given}, plan)


@click.command()
@click.argument("questions", type=click.Path(path_type=Path), required=False)
@LOAD
@BLOCKS
@click.option(
    "-k", "counts", type=click.IntRange(1, 10_000), multiple=True, default=(1, 5, 20), show_default=True,
    help="How many of the first blocks may be the right one; several make a line each.",
)  # fmt: skip
@click.option("--held-out", type=click.IntRange(1), help="Ask so many sentences of documents that were not trained on.")
@click.option("--without", is_flag=True, help="With --held-out: take each sentence out of its block first.")
@click.option("--bm25", is_flag=True, help="Compare with BM25, by the library bm25s.")
@EXACT
@JSON
def evaluate(
    questions: Path | None,
    load: str,
    blocks: Path | None,
    counts: tuple[int, ...],
    held_out: int | None,
    without: bool,
    bm25: bool,
    exact: bool,
    as_json: bool,
) -> None:
    """Print how often the right block is among the first k.

    QUESTIONS: a .jsonl file with a question a line, {"question": text, "answers": [text, ...]}, of which one has to be
    in the block or its title, or {"question": text, "block": number}.
    """
    if (questions is None) == (held_out is None):
        raise UsageError(
            "evaluate asks the questions of a file, or held-out sentences", hint="name a file or --held-out"
        )
    if without and held_out is None:
        raise UsageError("--without is for --held-out", hint="leave it out")
    if bm25:
        _require("bm25s", "bm25")
    checkpoint, plan = _saved(load)
    given: dict[str, Any] = {"questions": None if questions is None else str(questions), "counts": sorted({*counts})}
    given |= {"held_out": held_out, "without": without, "bm25": bm25, "exact": exact, "as_json": as_json}
    exec_module("neox_retrieval.ask", {"checkpoint": str(checkpoint), "blocks": _folder(plan, blocks), **given}, plan)


def _saved(load: str) -> tuple[Path, RunPlan]:
    checkpoint, plan = saved_run(load, load_plugins())
    if not isinstance(plan.model, RetrieverPlan):
        raise UsageError(f"{load}: is not a retriever", hint="name a run of architecture: retriever")
    return checkpoint, plan


def _folder(plan: RunPlan, blocks: Path | None) -> str:
    model: Any = plan.model
    found = str(blocks) if blocks is not None else model.index.path
    if found is None:
        raise UsageError("the run names no block-data-path", hint="name the folder of the vectors with --blocks")
    return str(found)


def _require(module: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise UsageError(
            f"--bm25 needs {module}, which is not installed", hint=f"pip install 'neox-retrieval[{extra}]'"
        )


def _claim(folder: Path) -> int:
    """Lock the folder of vectors until this process ends. Raises UsageError while another one writes there."""
    try:
        (folder / "run").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "run" / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        hint = "set block-data-path to a folder that can be written"
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}", hint=hint) from error
    if not lock(descriptor):
        os.close(descriptor)
        raise UsageError(f"{folder}: another index is being made here", hint="wait for it, or stop it")
    return descriptor
