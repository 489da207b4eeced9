"""A run with stages of the learning rate and a z-loss, stopped halfway and resumed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from toy_runs import CONFIG, NEOX, PLAIN, make_toy

pytestmark = pytest.mark.ranks

STAGES = "lr-stages=[{style: cosine, share: 0.5, to: 0.004}, {style: linear, share: 0.5}]"
SETS = (PLAIN, "num_gpus=1", "train-iters=22", "log-interval=1", "eval-interval=22", "monitors=[jsonl]", "z-loss=0.01")
RATES = ("lr-decay-style=staged", STAGES, "warmup=0.0909", "min-lr=0.001")


def train(folder: Path, save: str, *sets: str) -> dict[int, dict[str, Any]]:
    """What each step of the run has in its log."""
    words = [word for each in (*SETS, *RATES, f"save={folder / save}", *sets) for word in ("--set", each)]
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
