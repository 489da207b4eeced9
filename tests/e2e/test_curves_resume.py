"""A run with stages of the learning rate and a z-loss, stopped halfway and resumed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_runs import CONFIG, PLAIN, make_toy, plan_run

from neox_core.hooks.loader import load_plugins

pytestmark = pytest.mark.ranks

STAGES = "lr-stages=[{style: cosine, share: 0.5, to: 0.004}, {style: linear, share: 0.5}]"
SETS = ("num_gpus=1", "train-iters=22", "log-interval=1", "eval-interval=22", "monitors=[jsonl]", "z-loss=0.01")
RATES = (PLAIN, "lr-decay-style=staged", STAGES, "warmup=0.09090909090909091", "min-lr=0.001")


CYCLE = "cycle_min_lr: 1.0e-3, cycle_max_lr: 1.0e-2, cycle_first_step_size: 6, cycle_second_step_size: 8"
CYCLE = f"{CYCLE}, decay_step_size: 4, decay_mom_rate: 0.02"


Start = Callable[[str, Path, Any], None]
Rows = dict[int, dict[str, Any]]


def train(folder: Path, start: Start, runs: dict[str, tuple[str, ...]]) -> dict[str, Rows]:
    """What each step of each run has in its log, after what `neox train --resume auto` has ranks do."""
    catalog = load_plugins()
    planned = [plan_run(folder / "c.yml", folder / save, (*SETS, *runs[save]), catalog, "auto") for save in runs]
    start("continued.py", folder, planned)
    lines = {save: (folder / save / "metrics.jsonl").read_text().splitlines() for save in runs}
    return {save: {row["step"]: row for row in map(json.loads, lines[save]) if "loss" in row} for save in runs}


def test_it_resumes_bit_for_bit(tmp_path: Path, start: Start) -> None:
    make_toy(tmp_path)
    (tmp_path / "c.yml").write_text(CONFIG.format(folder=tmp_path))
    whole = train(tmp_path, start, {"whole": RATES, "parts": (*RATES, "exit-interval=11")})["whole"]
    parts = train(tmp_path, start, {"parts": RATES})["parts"]
    names = ("loss", "lr", "objective_z", "objective_cross_entropy")
    assert list(whole) == list(range(1, 23))
    for step, row in whole.items():
        assert {name: parts[step][name] for name in names} == {name: row[name] for name in names}, step
        assert row["loss"] == pytest.approx(row["objective_cross_entropy"] + 0.01 * row["objective_z"], rel=1e-6)
    rates = {1: 0.005, 2: 0.005, 3: 0.01, 8: 0.007, 13: 0.004, 18: 0.0025}  # the rate of the step before
    assert {step: whole[step]["lr"] for step in rates} == pytest.approx(rates)


def test_a_momentum_that_cycles_resumes_bit_for_bit(tmp_path: Path, start: Start) -> None:
    """Under both engines, stopped on the way down. It acts: losses differ from those of a run without it."""
    make_toy(tmp_path)
    text = CONFIG.format(folder=tmp_path).replace("lr-decay-style: constant\n", "")
    (tmp_path / "c.yml").write_text(text)
    scheduler = f"scheduler={{type: OneCycle, params: {{{CYCLE}}}}}"
    stays = (scheduler.replace(", decay_mom_rate: 0.02", ", cycle_momentum: false"), PLAIN)
    cycles = {engine: (scheduler, f"engine={engine}") for engine in ("plain", "deepspeed")}
    halves = {f"parts-{engine}": (*sets, "exit-interval=11") for engine, sets in cycles.items()}
    whole = train(tmp_path, start, {**cycles, "without": stays, **halves})
    parts = train(tmp_path, start, {f"parts-{engine}": sets for engine, sets in cycles.items()})
    by_engine = {}
    for engine in cycles:
        assert list(whole[engine]) == list(range(1, 23))
        for step, row in whole[engine].items():
            again = parts[f"parts-{engine}"][step]
            assert (again["loss"], again["lr"]) == (row["loss"], row["lr"]), step
        by_engine[engine] = [row["loss"] for row in whole[engine].values()]
    without = whole["without"]
    assert [row["lr"] for row in without.values()] == [row["lr"] for row in whole["deepspeed"].values()]
    assert by_engine["deepspeed"] == pytest.approx(by_engine["plain"], rel=1e-5)
    assert by_engine["plain"][0] == without[1]["loss"]
    assert abs(by_engine["plain"][11] - without[12]["loss"]) > 1e-4
