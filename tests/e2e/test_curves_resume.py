"""A run with stages of the learning rate and a z-loss, stopped halfway and resumed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from toy_runs import CONFIG, NEOX, PLAIN, make_toy

pytestmark = pytest.mark.ranks

STAGES = "lr-stages=[{style: cosine, share: 0.5, to: 0.004}, {style: linear, share: 0.5}]"
SETS = ("num_gpus=1", "train-iters=22", "log-interval=1", "eval-interval=22", "monitors=[jsonl]", "z-loss=0.01")
RATES = (PLAIN, "lr-decay-style=staged", STAGES, "warmup=0.09090909090909091", "min-lr=0.001")


CYCLE = "cycle_min_lr: 1.0e-3, cycle_max_lr: 1.0e-2, cycle_first_step_size: 6, cycle_second_step_size: 8"
CYCLE = f"{CYCLE}, decay_step_size: 4, decay_mom_rate: 0.02"


def train(folder: Path, save: str, *sets: str, rates: tuple[str, ...] = RATES) -> dict[int, dict[str, Any]]:
    """What each step of the run has in its log."""
    words = [word for each in (*SETS, *rates, f"save={folder / save}", *sets) for word in ("--set", each)]
    done = subprocess.run(
        [*NEOX, "train", str(folder / "c.yml"), *words, "--resume", "auto"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = map(json.loads, (folder / save / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in rows if "loss" in row}


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    make_toy(tmp_path)
    (tmp_path / "c.yml").write_text(CONFIG.format(folder=tmp_path))
    whole = train(tmp_path, "whole")
    train(tmp_path, "parts", "exit-interval=11")
    parts = train(tmp_path, "parts")
    names = ("loss", "lr", "objective_z", "objective_cross_entropy")
    assert list(whole) == list(range(1, 23))
    for step, row in whole.items():
        assert {name: parts[step][name] for name in names} == {name: row[name] for name in names}, step
        assert row["loss"] == pytest.approx(row["objective_cross_entropy"] + 0.01 * row["objective_z"], rel=1e-6)
    rates = {1: 0.005, 2: 0.005, 3: 0.01, 8: 0.007, 13: 0.004, 18: 0.0025}  # the rate of the step before
    assert {step: whole[step]["lr"] for step in rates} == pytest.approx(rates)


def test_a_momentum_that_cycles_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Under both engines, stopped on the way down. It acts: losses differ from those of a run without it."""
    make_toy(tmp_path)
    text = CONFIG.format(folder=tmp_path).replace("lr-decay-style: constant\n", "")
    (tmp_path / "c.yml").write_text(text)
    scheduler = f"scheduler={{type: OneCycle, params: {{{CYCLE}}}}}"
    stays = (scheduler.replace(", decay_mom_rate: 0.02", ", cycle_momentum: false"), PLAIN)
    by_engine = {}
    for engine in ("plain", "deepspeed"):
        cycles = (scheduler, f"engine={engine}")
        whole = train(tmp_path, f"whole-{engine}", rates=cycles)
        train(tmp_path, f"parts-{engine}", "exit-interval=11", rates=cycles)
        parts = train(tmp_path, f"parts-{engine}", rates=cycles)
        assert list(whole) == list(range(1, 23))
        for step, row in whole.items():
            assert (parts[step]["loss"], parts[step]["lr"]) == (row["loss"], row["lr"]), step
        by_engine[engine] = [row["loss"] for row in whole.values()]
    without = train(tmp_path, "without", rates=stays)
    assert [row["lr"] for row in without.values()] == [row["lr"] for row in whole.values()]
    assert by_engine["deepspeed"] == pytest.approx(by_engine["plain"], rel=1e-5)
    assert by_engine["plain"][0] == without[1]["loss"]
    assert abs(by_engine["plain"][11] - without[12]["loss"]) > 1e-4
