"""`neox train` with its checkpoints on an S3 server: saved, resumed on more ranks, and read by `neox generate`."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("moto", reason="pip install 'moto[server]' tests against an S3 server")

sys.path.insert(0, str(Path(__file__).parent))

from server import KEYS, s3_server

pytestmark = pytest.mark.ranks

CONFIG = """
num-layers: 1
hidden-size: 32
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
engine: plain
data-path: data/data
data-impl: mmap
tokenizer-type: GPT2BPETokenizer
vocab-file: data/vocab.json
merge-file: data/merges.txt
split: 1,0,0
eval-iters: 0
device: cpu
train_batch_size: 4
optimizer: {type: Adam, params: {lr: 0.01}}
lr-decay-style: constant
log-interval: 2
train-iters: 8
save-interval: 2
keep-last-n-checkpoints: 2
peak-tflops: 1
save: s3://bucket/run
"""


def neox(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "neox_core", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(folder: Path) -> dict[int, float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_a_run_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    draw = random.Random(1)
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
    lines = (json.dumps({"text": " ".join(draw.choices(words, k=12))}) + "\n" for _ in range(200))
    (tmp_path / "text.jsonl").write_text("".join(lines))
    (tmp_path / "c.yml").write_text(CONFIG)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    neox(tmp_path, "data", "prepare", "text.jsonl", "--out", "data")
    with s3_server():
        neox(tmp_path, "train", "c.yml", "--set", "num_gpus=1", "--set", "save=here", "--run-dir", "whole")
        said = neox(tmp_path, "train", "c.yml", "--set", "num_gpus=1", "--set", "exit-interval=4")
        assert "saved s3://bucket/run/step-00000004" in said
        two = ("--set", "num_gpus=2", "--set", "checkpoint.background=true")
        again = neox(tmp_path, "train", "c.yml", *two, "--resume", "auto", "--run-dir", "other")
        assert "saved s3://bucket/run/step-00000006 in " in again  # the last is waited for
        assert "resumed from s3://bucket/run/step-00000004, at step 4" in again
        objects = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket="bucket")["Contents"]
        manifests = [each["Key"] for each in objects if each["Key"].endswith("manifest.json")]
        assert manifests == ["run/step-00000006/manifest.json", "run/step-00000008/manifest.json"]
        text = neox(tmp_path, "generate", "--load", "s3://bucket/run", "--prompt", "one two", "--max-new-tokens", "3")
        assert text.startswith("one two")
    whole = losses(tmp_path / "whole")
    parts = {**losses(tmp_path / "runs/c"), **losses(tmp_path / "other")}
    assert parts == pytest.approx(whole, rel=1e-5)
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in file.read_bytes(), file
    left = [name for _, _, names in os.walk(tmp_path / "other") for name in names if "safetensors" in name]
    assert not [name for name in left if not name.endswith(".lock")]
