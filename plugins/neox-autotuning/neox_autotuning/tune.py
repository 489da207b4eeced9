"""`neox tune`: try settings of a run one after the other, and write down the fastest."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from neox_autotuning.foresight import foresee
from neox_autotuning.rules import BLOCK
from neox_autotuning.settings import AutotuningBlock, AutotuningSettings
from neox_autotuning.space import (
    COMPILE,
    MICRO,
    OTHER_SPELLINGS,
    Expect,
    Measure,
    Space,
    Trial,
    baseline,
    is_baseline,
    micro_batches,
    no_idea,
    search,
)
from neox_autotuning.trial import Bench, SearchStoppedError, as_sets
from neox_autotuning.tried import Tried
from neox_core.cli.notes import say
from neox_core.config.dialects import modernise
from neox_core.config.read.load import Loaded, load
from neox_core.config.schema.structure import structure_settings
from neox_core.errors import ConfigError, RankError, UsageError
from neox_core.hooks.loader import load_plugins
from neox_core.interpreter import python
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan
from neox_core.terminal import echo, echo_json


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")
@click.option("--run", "train", is_flag=True, help="Train with the best afterwards.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object of all trials at the end; the lines go to stderr.")
def tune(files: tuple[Path, ...], sets: tuple[str, ...], train: bool, as_json: bool = False) -> None:
    """Try micro-batches and ZeRO stages of the run that FILES describe, each for a few steps, and the best compiled.

    The block `autotuning` sets what to try and for how many steps. With the package neox-plan, what it expects to be
    fastest is tried first, and what it expects not to fit is left out. A setting that runs out of memory, or fails
    otherwise, is a result like any other. The best is written to best.yml in results_dir: the whole config, which `neox
    train` takes.
    """
    if train and as_json:
        raise UsageError("--json prints what was found, and --run prints a run", hint="use one of them")
    switch = f"{BLOCK}.enabled"
    searched = (*(each for each in sets if each.partition("=")[0].strip() != switch), f"{switch}=false")
    catalog = load_plugins()
    resolved = prepare_run(files, searched, catalog=catalog)
    say(resolved.notes)
    plan = resolved.plan
    written = load(files, sets)
    loaded = modernise(written, catalog.registry)
    block = _block(loaded)
    if plan.train.train_iters < block.end_profile_step:
        message = f"train-iters {plan.train.train_iters}: a trial measures up to step {block.end_profile_step}"
        raise ConfigError(message, hint=f"set train-iters higher, or {BLOCK}.end_profile_step lower")
    folder = _folder("results_dir", block, loaded, plan)
    bench = Bench(files, sets, frozenset(loaded.values), block, folder, _folder("exps_dir", block, loaded, plan))
    space = space_of(plan, written, loaded)
    foresight = foresee(resolved, space, block, micro_batches(space, block))
    tried = Tried(bench, foresight, as_json)
    try:
        if space.data_parallel == 1 and not _writes_stage(loaded):
            tried.say("ZeRO above 0 is left out: it shards over data-parallel ranks, and there is only one")
        if foresight.note:
            echo(foresight.note, err=True)
        best = compare(space, block, tried.measure, foresight.expect)
    except SearchStoppedError as stopped:
        echo(f"stopped in {stopped}; the results so far are kept, and `neox tune` continues from them", err=True)
        raise SystemExit(130) from None
    if best is None:
        _write(folder / "summary.txt", [*tried.lines, "no trial finished"])
        raise RankError("no trial finished", hint=f"see the output of each: {folder}/*/output.log")
    verdict = f"best: {best.name}"
    if not best.sets:
        verdict += ", the config as it is: no other setting was faster by more than the variation of its runs"
    _write(folder / "summary.txt", [*tried.lines, verdict])
    config = write_best(files, sets, best, folder / "best.yml")
    tried.say(f"{verdict}\n`neox train {config}` trains with it")
    if as_json:
        echo_json({"trials": tried.trials, "best": best.name, "sets": dict(best.sets), "config": str(config)})
    if train:
        raise SystemExit(subprocess.run(python("neox_core", "train", str(config)), check=False).returncode)


def compare(space: Space, block: AutotuningBlock, measure: Measure, expect: Expect = no_idea) -> Trial | None:
    """The best setting, None where nothing ran: the config as it is unless another one is clearly faster.

    The config as it is runs first and last. The difference of these two runs is the variation of a run, so another
    setting has to be faster than the faster of them by more than that.
    """
    own = baseline(space)
    first = measure(own)

    def known(trial: Trial) -> float | None:
        return first if is_baseline(trial, space) else measure(trial)

    best = search(space, block, known, expect)
    if first is None or best is None or is_baseline(best[1], space):
        return own if first is not None else best and best[1]
    again = measure(baseline(space, "_again"))
    again = first if again is None else again
    return best[1] if best[0] > max(first, again) + abs(first - again) else own


def _folder(key: str, block: AutotuningBlock, loaded: Loaded, plan: RunPlan) -> Path:
    """The folder in the config; else the default's name in the folder of the run."""
    written = loaded.values.get(BLOCK)
    given = isinstance(written, dict) and written.get(key) is not None
    return Path(getattr(block, key)) if given else Path(plan.run_dir) / getattr(block, key)


def _block(loaded: Loaded) -> AutotuningBlock:
    values: dict[str, Any] = {BLOCK: loaded.values[BLOCK]} if loaded.values.get(BLOCK) is not None else {}
    return structure_settings(AutotuningSettings, values).autotuning


def space_of(plan: RunPlan, written: Loaded, loaded: Loaded) -> Space:
    """The space to search: a stage, a train_batch_size and `compile` in the config are kept; the rest is searched.

    On one data-parallel rank ZeRO has nothing to shard, so only stage 0 is tried there.
    """
    batch, own = plan.batch, plan.optim.zero_stage
    most = 0 if batch.data_parallel == 1 else 1 if plan.cluster.pipeline_parallel > 1 else 3
    stages = (own,) if _writes_stage(loaded) else tuple(range(most + 1))
    whole = loaded.values.get("train_batch_size") is not None
    spellings = tuple(key for key in OTHER_SPELLINGS if written.values.get(key) is not None)
    micro_batch = batch.micro_batch if spellings or loaded.values.get(MICRO) is not None else 1
    per_rank = batch.train_batch // batch.data_parallel if whole else None
    return Space(
        (own, batch.micro_batch),
        stages,
        micro_batch,
        batch.data_parallel,
        batch.gradient_accumulation,
        per_rank,
        spellings,
        may_compile=loaded.values.get(COMPILE) is None and getattr(plan.model, COMPILE, None) is False,
    )


def _writes_stage(loaded: Loaded) -> bool:
    zero = loaded.values.get("zero_optimization")
    return isinstance(zero, dict) and zero.get("stage") is not None


def write_best(files: Sequence[Path], sets: Sequence[str], best: Trial, path: Path) -> Path:
    """The config with the best setting in it, as one file in today's spelling."""
    values = dict(modernise(load(files, [*sets, *as_sets(best.sets)]), load_plugins().registry).values)
    values.pop(BLOCK, None)
    writer = YAML()
    writer.default_flow_style = None
    with path.open("w", encoding="utf-8") as file:
        file.write(f"# Found by `neox tune`: {best.name}\n")
        writer.dump(values, file)
    return path


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
