"""`neox score` of docs/plugins/command.md gives the loss that the run measured itself."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
pos-emb: rotary
hidden-dropout: 0
attention-dropout: 0
tokenizer-type: CharLevelTokenizer
data-path: {folder}/text.jsonl
data-impl: text
split: 80,20,0
num-workers: 0
device: cpu
num_gpus: 1
engine: plain
train_micro_batch_size_per_gpu: 4
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
lr-decay-style: constant
train-iters: 8
eval-interval: 8
eval-iters: 3
save: {folder}/saved
save-interval: 8
seed: 7
peak-tflops: 0.1
"""


def test_it_gives_the_loss_of_the_run(build_page: Any, tmp_path: Path) -> None:
    build_page("command")
    lines = (json.dumps({"text": f"document {n} of a text that is read again"}) for n in range(400))
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    (tmp_path / "run.yml").write_text(CONFIG.format(folder=tmp_path))
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def neox(*argv: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "neox_core", *argv]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = neox("score", "run.yml", code=5)
    assert "no checkpoint here" in said
    neox("train", "run.yml")
    score = re.search(r"step-0*8: (\d+\.\d+) over 3 batches", neox("score", "run.yml"))
    logged = [json.loads(line) for line in (tmp_path / "saved/metrics.jsonl").read_text().splitlines()]
    (loss,) = [float(value) for line in logged for name, value in line.items() if name == "valid_loss"]
    assert score is not None
    assert float(score[1]) == pytest.approx(loss, abs=2e-4)
