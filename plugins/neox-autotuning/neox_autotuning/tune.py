"""`neox tune`: try settings of a run one after the other, and write down the fastest."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from neox_autotuning.rules import BLOCK
from neox_autotuning.settings import AutotuningBlock, AutotuningSettings
from neox_autotuning.space import MICRO, OTHER_SPELLINGS, Space, Trial, search
from neox_autotuning.trial import Bench, Result, SearchStoppedError, as_sets, score
from neox_core.config.load import Loaded, load
from neox_core.config.modernise import modernise
from neox_core.config.structure import structure_settings
from neox_core.errors import ConfigError, RankError
from neox_core.interpreter import python
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan

UNITS = {"latency": "s a step", "throughput": "samples/s", "FLOPS": "FLOPS of a device"}


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")
@click.option("--run", "train", is_flag=True, help="Train with the best afterwards.")
def tune(files: tuple[Path, ...], sets: tuple[str, ...], train: bool) -> None:
    """Try micro-batches and ZeRO stages of the run that FILES describe, each for a few steps.

    The block `autotuning` says what and how long. A setting that runs out of memory, or fails otherwise, is a result
    like any other. The best is written to best.yml in results_dir: the whole config, which `neox train` takes.
    """
    searched = (*sets, f"{BLOCK}.enabled=false")
    plan = prepare_run(files, searched).plan
    written = load(files, sets)
    loaded = modernise(written)
    block = _block(loaded)
    bench = Bench(files, sets, frozenset(loaded.values), block)
    results: list[Result] = []

    def measure(trial: Trial) -> float | None:
        result = bench.run(trial)
        results.append(result)
        click.echo(_line(result))
        return score(result)

    try:
        best = search(space_of(plan, written, loaded), block, measure)
    except SearchStoppedError as stopped:
        click.echo(f"stopped in {stopped}; the results so far are kept, and `neox tune` goes on from them", err=True)
        raise SystemExit(130) from None
    folder = Path(block.results_dir)
    lines = [_line(result) for result in results]
    if best is None:
        _write(folder / "summary.txt", [*lines, "no trial ran to its end"])
        raise RankError("no trial ran to its end", hint=f"what each said: {folder}/*/output.log")
    _write(folder / "summary.txt", [*lines, f"best: {best.name}"])
    config = write_best(files, sets, best, folder / "best.yml")
    click.echo(f"best: {best.name}\n`neox train {config}` trains with it")
    if train:
        raise SystemExit(subprocess.run(python("neox_core", "train", str(config)), check=False).returncode)


def _block(loaded: Loaded) -> AutotuningBlock:
    values: dict[str, Any] = {BLOCK: loaded.values[BLOCK]} if loaded.values.get(BLOCK) is not None else {}
    return structure_settings(AutotuningSettings, values).autotuning


def space_of(plan: RunPlan, written: Loaded, loaded: Loaded) -> Space:
    """A stage, and a whole batch, that the config writes are kept; what it leaves open is searched."""
    zero = loaded.values.get("zero_optimization")
    fixed = isinstance(zero, dict) and zero.get("stage") is not None
    stages = (plan.optim.zero_stage,) if fixed else (0, 1) if plan.cluster.pipeline_parallel > 1 else (0, 1, 2, 3)
    batch = plan.batch
    whole = loaded.values.get("train_batch_size") is not None
    spellings = tuple(key for key in OTHER_SPELLINGS if written.values.get(key) is not None)
    micro_batch = batch.micro_batch if spellings or loaded.values.get(MICRO) is not None else 1
    per_rank = batch.train_batch // batch.data_parallel if whole else None
    return Space(stages, micro_batch, batch.data_parallel, batch.gradient_accumulation, per_rank, spellings)


def write_best(files: Sequence[Path], sets: Sequence[str], best: Trial, path: Path) -> Path:
    """The config with the best setting in it, as one file in today's spelling."""
    values = dict(modernise(load(files, [*sets, *as_sets(best.sets)])).values)
    values.pop(BLOCK, None)
    writer = YAML()
    writer.default_flow_style = None
    with path.open("w", encoding="utf-8") as file:
        file.write(f"# Found by `neox tune`: {best.name}\n")
        writer.dump(values, file)
    return path


def _line(result: Result) -> str:
    if result.value is None:
        return f"{result.name}: failed: {result.cause.splitlines()[-1].strip()}"
    return f"{result.name}: {result.value:.6g} {UNITS[result.metric]}"


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
