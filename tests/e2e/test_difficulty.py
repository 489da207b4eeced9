"""`neox difficulty` as a command: what it prints, the index it writes, and the notes of its config."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neox_author.testing import build, load_only
from neox_curriculum.index import read_rows

SEQ, VOCAB = 8, 64
CONFIG = f"""
num-layers: 1
hidden-size: 16
num-attention-heads: 2
seq-length: {SEQ}
max-position-embeddings: {SEQ}
padded-vocab-size: {VOCAB}
geglu: true
data-path: toy
data-impl: mmap
split: 1,0,0
eval-iters: 0
engine: plain
device: cpu
train_micro_batch_size_per_gpu: 2
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
train-iters: 10
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One document, of which the second half repeats one id: its samples differ in how rare their ids are."""
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(tmp_path / "toy", VOCAB)
    writer.add_document([*range(40), *[40] * 41])
    writer.close()
    (tmp_path / "config.yml").write_text(CONFIG)
    return tmp_path


def difficulty(folder: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "neox_core", "difficulty", "config.yml", "--out", "index", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_json_and_lines_tell_the_same_index(folder: Path) -> None:
    told = json.loads(difficulty(folder, "--json").stdout)
    values = read_rows(str(folder / told["index_to_metric_path"])).values
    assert (told["lowest"], told["highest"]) == (values.min(), values.max())
    assert told["lowest"] < told["highest"]
    samples = read_rows(str(folder / told["index_to_sample_path"])).values
    assert np.array_equal(np.sort(samples), np.arange(told["samples"]))
    lines = difficulty(folder).stdout
    assert f"{told['samples']} samples, vocabularyrarity from {told['lowest']} to {told['highest']}" in lines
    assert f"index_to_sample_path: {told['index_to_sample_path']}\n" in lines


def test_notes_of_the_config_go_to_stderr(folder: Path) -> None:
    assert "note: geglu: is the old spelling of activation: geglu" in difficulty(folder, "--json").stderr
