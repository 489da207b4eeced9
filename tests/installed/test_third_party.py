"""With every distribution installed from its wheel: a third-party optimizer trains, from the command line."""

import json
import subprocess
import sys
from pathlib import Path

CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
pos-emb: rotary
norm: rmsnorm
data-path: data/data
vocab-file: data/vocab.json
merge-file: data/merges.txt
tokenizer-type: GPT2BPETokenizer
train-iters: 30
train_micro_batch_size_per_gpu: 4
eval-iters: 2
log-interval: 10
num-workers: 0
split: "80,20"
save: out
save-interval: 30
lr-decay-style: constant
warmup: 0
optimizer:
  type: ExampleLion
  params: {lr: 3.0e-3, betas: [0.9, 0.99]}
"""


def neox(*argv: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "neox_core", *argv], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_third_party_optimizer_trains(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        lines = [f"def function_{number}_{i}(x):\n    return x + {i}\n" for i in range(60)]
        (text / f"{number:02}.txt").write_text("\n".join(lines))
    neox("data", "prepare", "text", "--out", "data", "--vocab-size", "400", cwd=tmp_path)
    (tmp_path / "config.yml").write_text(CONFIG)
    neox("train", "config.yml", cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.5
    plan = json.loads((tmp_path / "out/step-00000030/run.json").read_text())
    assert plan["optim"]["optimizer"]["plugin"] == "neox-example-lion"
    assert plan["plugins"]["neox-example-lion"] == "0.1.0"
