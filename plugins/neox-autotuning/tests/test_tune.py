"""`neox tune` on a tiny model: real runs, and trials that cannot start."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from neox_core.plan.resolve import prepare_run
from neox_core.testing import build, load_only

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


def neox(*argv: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "neox_core", *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_tune_tries_each_stage_and_writes_the_best(tmp_path: Path) -> None:
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(tmp_path / "toy", 64)
    for document in range(40):
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(60)])
    writer.close()
    config = tmp_path / "config.yml"
    config.write_text(CONFIG.format(folder=tmp_path))

    looked_at = prepare_run([config], start=False).notes
    assert [each.key for each in looked_at if each.severity == "warning"] == ["autotuning"]
    refused = neox("train", str(config))
    assert refused.returncode == 2
    assert "autotuning: is enabled, and neox train does not search (`neox tune`" in refused.stderr

    done = neox("tune", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    results = {
        folder.name: json.loads((folder / "result.json").read_text()) for folder in sorted(tmp_path.glob("results/z*"))
    }
    assert list(results) == ["z0_mbs2", "z1_mbs2", "z2_mbs2", "z3_mbs2"]
    values = {name: result["value"] for name, result in results.items() if result["value"] is not None}
    assert set(values) == {"z0_mbs2", "z1_mbs2"}
    assert "ExampleLion" in results["z2_mbs2"]["cause"]
    for name, value in values.items():
        folder = tmp_path / "results" / name
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        seconds = {line["step"]: line["step_s"] for line in lines if "step_s" in line}
        assert set(seconds) == {1, 2, 3, 4}
        assert value == sum(seconds[step] for step in (2, 3, 4)) / 3
        assert not any("valid_loss" in line for line in lines)
        assert json.loads((folder / "run.json").read_text())["optim"]["zero_stage"] == int(name[1])
    assert not (tmp_path / "checkpoints").exists()
    assert sorted(file.stem for file in tmp_path.glob("trials/*.json")) == list(results)

    best = min(values, key=values.__getitem__)
    assert (tmp_path / "results" / "summary.txt").read_text().splitlines()[-1] == f"best: {best}"
    written = YAML(typ="safe").load(tmp_path / "results" / "best.yml")
    assert written["zero_optimization"]["stage"] == int(best[1])
    plan = prepare_run([tmp_path / "results" / "best.yml"]).plan
    assert (plan.optim.zero_stage, plan.batch.micro_batch, plan.train.train_iters) == (int(best[1]), 2, 40)
    assert plan.checkpoint.save == str(tmp_path / "checkpoints")

    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("results/*/metrics.jsonl")}
    again = neox("tune", str(config))  # what is there is read
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("results/*/metrics.jsonl")} == before

    wrong = neox("tune", str(config), "--set", "zero_optimization.stage=2")  # the run as it is has to be right
    assert wrong.returncode == 2
    assert "ExampleLion" in wrong.stderr
