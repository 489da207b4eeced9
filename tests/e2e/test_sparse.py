"""`neox train` with sparse attention in every layer on two tensor-parallel ranks, which then generate with a cache."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
CONFIG = """
num-layers: 3
hidden-size: 64
num-attention-heads: 4
seq-length: 64
max-position-embeddings: 64
norm: rmsnorm
pos-emb: rotary
activation: swiglu
gpt-j-residual: true
hidden-dropout: 0
attention-dropout: 0
sparsity: all
sparse_attention:
  mode: fixed
  block: 8
  num_local_blocks: 2
  different_layout_per_head: true
  num_different_global_patterns: 2
checkpoint-activations: true
model-parallel-size: 2
num_gpus: 2
device: cpu
data-path: data/data
tokenizer-type: GPT2BPETokenizer
vocab-file: data/vocab.json
merge-file: data/merges.txt
split: 1,0,0
eval-iters: 0
num-workers: 0
train_micro_batch_size_per_gpu: 4
optimizer: {type: Adam, params: {lr: 0.01}}
lr-decay-style: constant
train-iters: 60
log-interval: 20
save: save
save-interval: 60
sample-prompt: two three four
"""


def neox(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "neox_core", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_trains_and_generates(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS * 2500))
    (tmp_path / "config.yml").write_text(CONFIG)
    neox(tmp_path, "data", "prepare", "text.txt", "--out", "data", "--vocab-size", "300")
    said = neox(tmp_path, "train", "config.yml")
    rows = [json.loads(line) for line in (tmp_path / "save/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.2 < 1 < losses[0]
    assert "sample:\ntwo three four five six seven eight nine ten eleven zero one two" in said
