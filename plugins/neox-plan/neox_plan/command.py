"""`neox plan`."""

from __future__ import annotations

from pathlib import Path

import click

from neox_core.cli.notes import FILES, SETS, say
from neox_core.cli.offered import loaded
from neox_core.contracts.architecture import ModelSize
from neox_core.errors import UsageError
from neox_core.plan.resolve import prepare_run
from neox_core.terminal import echo, echo_json
from neox_plan.gpus import GPUS, find_gpu


@click.command()
@FILES
@SETS
@click.option(
    "--on",
    metavar="HOSTSxGPUS[:GPU]",
    help=f"The cluster, such as 12x8:H100; GPU is one of {', '.join(GPUS)}. Default: this machine, without times.",
)
@click.option(
    "--mfu",
    type=float,
    help="MFU in percent, as measured by a run; the time of a step follows from it, not from the model of one.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
def plan(files: tuple[Path, ...], sets: tuple[str, ...], on: str | None, mfu: float | None, as_json: bool) -> None:
    """Say what the run of FILE... needs before it starts: memory by part, FLOPs, time, and what its links carry.

    With a GPU, also whether it fits, the fastest layouts of the same batch on the same GPUs, and, where it does not
    fit, the smallest changes that make it fit. Nothing is started; torch is not imported.
    """
    from neox_plan.describe import as_object, in_lines
    from neox_plan.estimate import estimate

    cluster, _, name = (on or "").partition(":")
    gpu = find_gpu(name) if name else None
    if on is not None and on.endswith(":"):
        raise UsageError(f"--on {on}: names no GPU after the colon", hint=f"write one of {', '.join(GPUS)}")
    if mfu is not None and not 0 < mfu <= 100:
        raise UsageError(f"--mfu {mfu:g}: has to be above 0 and at most 100, in percent")
    if mfu is not None and gpu is None:
        raise UsageError("--mfu needs a GPU, whose peak it is a part of", hint="add it to --on, such as 1x8:H100")
    resolved = prepare_run(files, sets, catalog=loaded(), start=False, cluster=None if on is None else cluster)
    size = resolved.size
    if not isinstance(size, ModelSize) or resolved.memory is None:
        reason = size.untold if isinstance(size, ModelSize) else size.reason
        raise UsageError(
            f"the size of this model is not known before a start: {reason}",
            hint="prepare the data with `neox data prepare` first, or set padded-vocab-size",
        )
    found = estimate(resolved, gpu, None if mfu is None else mfu / 100, files, sets, cluster)
    if as_json:
        echo_json(as_object(found))
        return
    say(resolved.notes)
    run = resolved.plan
    echo(f"{run.model.in_words()}; {run.precision.dtype}, {found.ranks} x {run.cluster.device}")
    for line in in_lines(found):
        echo(line)
