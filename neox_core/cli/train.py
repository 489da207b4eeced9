"""`neox train`: from config files to running ranks, without torch in this process."""

from __future__ import annotations

import os
from pathlib import Path

import click

from neox_core.cli.config import size_in_words
from neox_core.cli.notes import FILES, RESUME, SETS, say
from neox_core.cli.supervise import Supervisor, show
from neox_core.errors import PluginError, UsageError
from neox_core.files import lock
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import RunPlan, write_runfile
from neox_core.plan.start import launch_command
from neox_core.terminal import echo


@click.command()
@FILES
@SETS
@click.option("--dry-run", is_flag=True, help="Show what would run, and run nothing.")
@RESUME
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of run.json, logs and metrics. Default: `save`, else runs/<name of the first file>.",
)
@click.option("--debug", is_flag=True, help="Show the engine's own messages, and tracebacks.")
def train(
    files: tuple[Path, ...], sets: tuple[str, ...], dry_run: bool, resume: str | None, run_dir: Path | None, debug: bool
) -> None:
    """Train the model that FILES describe. Ctrl-C stops after a step and saves; a second one kills."""
    if debug:
        os.environ["NEOX_DEBUG"] = "1"  # as `neox --debug train` does
    debug = os.environ.get("NEOX_DEBUG") == "1"
    resolved = prepare_run(files, sets, resume=resume, debug=debug, start=not dry_run, folder=run_dir, checked=True)
    plan = resolved.plan
    if not dry_run:
        _hand_over(resolved, files, sets, resume)
    say(resolved.notes)
    run_file = Path(plan.run_dir) / "run.json"
    command = launch_command(plan, resolved.config.components("launcher")[0].settings)
    if dry_run:
        echo(summary(plan))
        echo(f"{'size':<10} {size_in_words(resolved).removeprefix('size: ')}")
        echo("\n".join((f"command    {show(command)}", *command.notes)))
        return
    _claim(run_file.parent)
    write_runfile(plan, run_file)
    echo(size_in_words(resolved))
    for earlier in run_file.parent.glob("failure*.json"):
        earlier.unlink(missing_ok=True)
    raise SystemExit(Supervisor(command, run_file.parent, plan.launcher.owner).run())


def _hand_over(resolved: Resolved, files: tuple[Path, ...], sets: tuple[str, ...], resume: str | None) -> None:
    """Let the plugin that starts this run do so; return where there is none."""
    ask = resolved.catalog.manager.hook.neox_train
    runs = ask(config=resolved.config, plan=resolved.plan, files=files, sets=sets, resume=resume)
    found = [run for each in runs for run in each]
    if len(found) > 1:
        raise PluginError("several plugins would start this run", hint="switch one of them off: NEOX_PLUGINS_DISABLE")
    if found:
        raise SystemExit(found[0]())


def _claim(folder: Path) -> None:
    """Lock the folder until this process ends, so that a second run does not overwrite its run.json, logs and reports.

    Raises UsageError while another run holds it. A file system without locks is not protected.
    """
    hint = "free some space, or set `save` or --run-dir to a folder that can be written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".run.lock", os.O_RDWR | os.O_CREAT, 0o644)  # left open
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}", hint=hint) from error
    if not lock(descriptor):
        hint = "wait for it or stop it, or give this run a `save` or a --run-dir of its own"
        raise UsageError(f"{folder}: another run is using this folder", hint=hint)


def summary(plan: RunPlan) -> str:
    """The plan in a few lines."""
    model, batch, optim, steps, cluster = plan.model, plan.batch, plan.optim, plan.train, plan.cluster
    dtype = plan.precision.dtype + (f", autocast {plan.precision.autocast}" if plan.precision.autocast else "")
    saves = plan.checkpoint
    rows = {
        "model": model.in_words(),
        "batch": f"{batch.train_batch} samples a step = {batch.micro_batch} a rank x {batch.gradient_accumulation} "
        f"accumulated x {batch.data_parallel} data-parallel; {batch.train_batch * model.seq_length:,} tokens",
        "optimizer": f"{optim.optimizer.name}, lr {optim.lr:g} ({optim.schedule.name}), ZeRO stage {optim.zero_stage}, "
        f"{dtype}",
        "steps": f"{steps.train_iters}, log every {steps.log_interval}, evaluate every {steps.eval_interval}",
        "data": plan.data.prefix or ", ".join(each.prefix for each in plan.data.train) or "none",
        "checkpoint": f"{saves.save or 'not saved'}"
        + (f", every {saves.save_interval} steps" if saves.save and saves.save_interval else ""),
        "ranks": f"{cluster.world_size} on {', '.join(host.name for host in cluster.hosts)}, {cluster.device}, "
        f"{cluster.backend}, by {plan.launcher.name}",
        "run file": str(Path(plan.run_dir) / "run.json"),
    }
    return "\n".join(f"{name:<10} {value}" for name, value in rows.items())
