"""`neox tune` on a tiny model: real runs, and trials that cannot start."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from neox_author.testing import build, load_only
from neox_autotuning.settings import AutotuningBlock
from neox_autotuning.space import Trial
from neox_autotuning.trial import Bench, SearchStoppedError
from neox_autotuning.tune import space_of, tune

from neox_core.config.dialects import modernise
from neox_core.config.read.load import load
from neox_core.errors import ConfigError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

CONFIG = """
num-layers: 1
hidden-size: 16
num-attention-heads: 2
seq-length: 8
max-position-embeddings: 8
norm: rmsnorm
pos-emb: rotary
hidden-dropout: 0
attention-dropout: 0
padded-vocab-size: 64
data-path: {folder}/toy
data-impl: mmap
split: 90,10,0
num-workers: 0
device: cpu
num_gpus: 2
compile: false
train_step_batch_size: 2
optimizer: {{type: ExampleLion, params: {{lr: 0.01}}}}  # for ZeRO 0 and 1
train-iters: 40
eval-interval: 1
eval-iters: 2
save: {folder}/checkpoints
save-interval: 1
autotuning:
  enabled: true
  metric: latency
  results_dir: {folder}/results
  exps_dir: {folder}/trials
  start_profile_step: 2
  end_profile_step: 4
  num_tuning_micro_batch_sizes: 1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """With its data."""
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(tmp_path / "toy", 64)
    for document in range(40):
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(60)])
    writer.close()
    config = tmp_path / "config.yml"
    config.write_text(CONFIG.format(folder=tmp_path))
    return config


@pytest.mark.parametrize("sets", [(), ("autotuning.enabled=true",)])
def test_a_run_too_short_to_be_measured_is_refused(config: Path, sets: tuple[str, ...]) -> None:
    """Also where the command line switches the search on, which it did in vain: the key was given twice."""
    with pytest.raises(ConfigError, match="train-iters 3: a trial measures up to step 4"):
        tune.callback((config,), (*sets, "train-iters=3"), False)


@pytest.mark.parametrize(
    ("sets", "stages", "own"),
    [
        ([], (0, 1, 2, 3), (0, 2)),
        (["num_gpus=1"], (0,), (0, 2)),  # nothing to spread
        (["num_gpus=1", "zero_optimization.stage=1"], (1,), (1, 2)),
        (["train_step_batch_size=null", "train_batch_size=16"], (0, 1, 2, 3), (0, 8)),
    ],
)
def test_what_the_config_leaves_open_is_searched(
    config: Path, sets: list[str], stages: tuple[int, ...], own: tuple[int, int]
) -> None:
    sets = ["autotuning.enabled=false", "optimizer.type=Adam", *sets]
    written = load([config], sets)
    space = space_of(
        prepare_run([config], sets, start=False).plan, written, modernise(written, load_plugins().registry)
    )
    assert (space.stages, space.own) == (stages, own)


@pytest.mark.parametrize(("compiled", "tried"), [("null", True), ("false", False), ("true", False)])
def test_whether_to_compile_is_tried_unless_the_config_says_it(config: Path, compiled: str, tried: bool) -> None:
    sets = ["autotuning.enabled=false", f"compile={compiled}"]
    written = load([config], sets)
    plan = prepare_run([config], sets, start=False).plan
    assert space_of(plan, written, modernise(written, load_plugins().registry)).may_compile is tried


def test_the_best_is_tried_compiled(tmp_path: Path, config: Path) -> None:
    done = neox("tune", str(config), "--set", "num_gpus=1", "--set", "compile=null")
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, verdict, _ = done.stdout.splitlines()
    names = [row.partition(":")[0] for row in rows[1:3]]
    assert names == ["baseline", "z0_mbs2_compile"]
    models = [json.loads((tmp_path / "results" / name / "run.json").read_text())["model"] for name in names]
    assert [each["compile"] for each in models] == [False, True]
    best = load([tmp_path / "results" / "best.yml"], []).values
    assert bool(best.get("compile")) is verdict.startswith("best: z0_mbs2_compile")


def test_without_folders_in_the_config_results_lie_with_the_run(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(CONFIG.format(folder=tmp_path).replace(f"  exps_dir: {tmp_path}/trials\n", ""))
    asked: list[Bench] = []

    def stop(bench: Bench, trial: Trial) -> None:
        asked.append(bench)
        raise SearchStoppedError(trial.name)

    monkeypatch.setattr(Bench, "run", stop)
    with pytest.raises(SystemExit, match="130"):
        tune.callback((config,), (), False)  # type: ignore[misc]  # click types it as perhaps missing
    assert (asked[0].folder, asked[0].notes) == (tmp_path / "results", tmp_path / "checkpoints" / "autotuning_exps")


def test_a_trial_is_not_started_again(tmp_path: Path, config: Path) -> None:
    pytest.importorskip("neox_elasticity")
    sets = ["max-restarts=2", "optimizer.type=Adam"]
    modern = modernise(load([config], sets), load_plugins().registry)
    bench = Bench([config], sets, frozenset(modern.values), AutotuningBlock(), tmp_path, tmp_path)
    words = bench.command(Trial("baseline", 0, 2, {}), tmp_path)
    told = [value for flag, value in pairwise(words) if flag == "--set"]
    config_of_trial = prepare_run([config], told).config
    assert config_of_trial.value("max-restarts") is None


def neox(*argv: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "neox_core", *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_tune_tries_each_stage_and_writes_the_best(tmp_path: Path, config: Path) -> None:
    looked_at = prepare_run([config], start=False).notes
    assert [each.key for each in looked_at if each.severity == "warning"] == ["autotuning"]
    refused = neox("train", str(config))
    assert refused.returncode == 2
    assert "autotuning: is enabled, and neox train does not search (run `neox tune`" in refused.stderr

    done = neox("tune", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    folders = sorted(tmp_path.glob("results/*/"))
    results = {folder.name: json.loads((folder / "result.json").read_text()) for folder in folders}
    again = {"baseline_again": results.pop("baseline_again")} if "baseline_again" in results else {}
    assert list(results) == ["baseline", "z1_mbs2", "z2_mbs2", "z3_mbs2"]  # z0_mbs2 is the config as it is
    values = {name: result["value"] for name, result in results.items() if result["value"] is not None}
    assert set(values) == {"baseline", "z1_mbs2"}
    assert "ExampleLion" in results["z2_mbs2"]["cause"]
    for name, value in values.items():
        folder = tmp_path / "results" / name
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        seconds = {line["step"]: line["step_s"] for line in lines if "step_s" in line}
        assert set(seconds) == {1, 2, 3, 4}
        assert value == sorted(seconds[step] for step in (2, 3, 4))[1]
        assert not any("valid_loss" in line for line in lines)
        assert json.loads((folder / "run.json").read_text())["optim"]["zero_stage"] == (name == "z1_mbs2")
    assert not (tmp_path / "checkpoints").exists()
    assert {file.stem for file in tmp_path.glob("trials/*.json")} == {*results, *again}

    rows = done.stdout.splitlines()
    assert rows[0].startswith("baseline: ")
    assert rows[1].split(";")[0].endswith(("% faster", "% slower"))
    assert "; told " in rows[1]  # by the planner, before it ran
    runs = sorted(result["value"] for result in (results["baseline"], *again.values()))
    faster = bool(again) and values["z1_mbs2"] < runs[0] - (runs[-1] - runs[0])
    verdict = (tmp_path / "results" / "summary.txt").read_text().splitlines()[-1]
    assert verdict.startswith("best: z1_mbs2" if faster else "best: baseline, the config as it is")
    assert bool(again) is (values["z1_mbs2"] < values["baseline"])
    plan = prepare_run([tmp_path / "results" / "best.yml"]).plan
    assert (plan.optim.zero_stage, plan.batch.micro_batch, plan.train.train_iters) == (int(faster), 2, 40)
    assert plan.checkpoint.save == str(tmp_path / "checkpoints")

    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("results/*/metrics.jsonl")}
    again = neox("tune", str(config))  # what is there is read
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("results/*/metrics.jsonl")} == before

    wrong = neox("tune", str(config), "--set", "zero_optimization.stage=2")  # the run as it is has to be right
    assert wrong.returncode == 2
    assert "ExampleLion" in wrong.stderr
