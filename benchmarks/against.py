"""This checkout next to another one, such as an older commit: commands, and steps of the quickstart and of 14M.

    python benchmarks/against.py OTHER [--runs 9] [--only light steps]

OTHER is the folder of a git worktree with its own `.venv`, made from the same wheels (`make setup` in it). Both take
turns in everything. A command is a whole process: `neox plugins list`, `neox config check` and `neox train --dry-run`
on each checkout's own quickstart. Steps are of whole runs of `neox train`, of which one goes on for a few steps while
the other is stopped, each with as many threads as there are cores: before 5f5a2605 a run took no other number. Beside
the time on the clock, the processor's is measured, of all processes of a run: other work on the machine changes it
less. Rows are appended to benchmarks/results.csv; one whose case ends in "this / other" holds ratios of neighbouring
turns.
"""

import argparse
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import append_row
from train_cpu import SHAPES, config_of, write_dataset
from turns import SETTLE, Contender, neox_train, warm_up

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "plugins list": ("plugins", "list"),
    "config check": ("config", "check", "configs/quickstart.yml"),
    "train --dry-run": ("train", "configs/quickstart.yml", "--dry-run"),
}
WARM_UP, STEPS = 3, {"quickstart": 4, "14m": 1}
Times = tuple[float, float]
"""Seconds on the clock, and of the processor."""


def python_of(tree: Path) -> str:
    return str(tree / ".venv" / "bin" / "python")


def command(tree: Path, words: Sequence[str]) -> Times:
    """A whole process of a checkout. Its modules are compiled before, as those of any installed package."""
    before, began = _of_children(), time.perf_counter()
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([python_of(tree), "-m", "neox_core", *words], cwd=tree, env=env, check=True, capture_output=True)
    return time.perf_counter() - began, _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commands(trees: Mapping[str, Path], runs: int) -> None:
    for name, words in COMMANDS.items():
        for tree in trees.values():
            command(tree, words)
        times: dict[str, list[Times]] = {tree: [] for tree in trees}
        for index in range(runs):
            for tree in _in_turn(index, trees):
                times[tree].append(command(trees[tree], words))
        _rows(name, times, "s")


def steps(trees: Mapping[str, Path], runs: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, config in configs(folder, trees["this"], runs).items():
            threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
            started = {
                tree: neox_train(config, folder / name / tree, threads, python_of(trees[tree])) for tree in trees
            }
            _rows(f"step of {name}", _turns(started, runs, STEPS[name]), "s")


def configs(folder: Path, tree: Path, runs: int) -> dict[str, dict[str, Any]]:
    """The quickstart, with its own data, and Pythia's 14M shape, on random tokens."""
    from ruamel.yaml import YAML

    words = ["data", "prepare", "stdlib", "--out", str(folder / "stdlib")]
    subprocess.run([python_of(tree), "-m", "neox_core", *words], cwd=tree, check=True, capture_output=True)
    quick = YAML(typ="safe").load(tree / "configs" / "quickstart.yml")
    files = {
        key: quick[key].replace("data/stdlib", str(folder / "stdlib"))
        for key in quick
        if "data/stdlib" in str(quick[key])
    }
    quick |= {"log-interval": 1, "eval-iters": 0, "save-interval": 1_000_000, "num_gpus": 1, "device": "cpu"}
    del quick["sample-prompt"]
    count = WARM_UP + runs * (SETTLE + max(STEPS.values())) + 1
    return {
        "quickstart": {**quick, **files, "train-iters": max(count, 2200)},
        "14m": config_of(SHAPES["14m"], count, write_dataset(folder, 100_000)),
    }


def _turns(runs: Mapping[str, Contender], rounds: int, count: int) -> dict[str, list[Times]]:
    times: dict[str, list[Times]] = {name: [] for name in runs}
    try:
        warm_up(list(runs.values()), WARM_UP)
        for index in range(rounds):
            for name in _in_turn(index, runs):
                before = runs[name].processor_s
                took = runs[name].turn(count)
                times[name].append((took / count, (runs[name].processor_s - before) / (SETTLE + count)))
    finally:
        for run in runs.values():
            run.end()
    return times


def _in_turn(index: int, names: Mapping[str, Any]) -> list[str]:
    """Every round begins with the other one."""
    return list(names) if index % 2 else list(names)[::-1]


def _rows(case: str, times: Mapping[str, Sequence[Times]], unit: str) -> None:
    for which, clock in enumerate(("clock", "processor")):
        values = {name: [each[which] for each in of] for name, of in times.items()}
        for name, seconds in values.items():
            append_row("against", f"{case}, {clock}: {name}", unit, seconds)
        this, other = values.values()
        ratios = [mine / theirs for mine, theirs in zip(this, other, strict=True)]
        append_row("against", f"{case}, {clock}: {' / '.join(values)}", "times", ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=["light", "steps"], default=["light", "steps"])
    options = parser.parse_args()
    other = options.other.resolve()
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=other, check=True, capture_output=True, text=True
    )
    trees = {"this": ROOT, said.stdout.strip(): other}
    if "light" in options.only:
        commands(trees, options.runs)
    if "steps" in options.only:
        steps(trees, options.runs)


if __name__ == "__main__":
    main()
