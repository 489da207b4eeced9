"""Parts of a plugin that go wrong in a later step of a run: the error of the run names the part that did it."""

import json
import os
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
seq-length: 16
max-position-embeddings: 16
hidden-dropout: 0
attention-dropout: 0
mlp-type: odd
tokenizer-type: CharLevelTokenizer
data-path: {folder}/text.jsonl
data-impl: text
split: 100,0,0
eval-iters: 0
num-workers: 0
device: cpu
num_gpus: {ranks}
engine: {engine}
train_micro_batch_size_per_gpu: 2
optimizer: {{type: Adam, params: {{lr: 0.001}}}}
lr-decay-style: constant
train-iters: 8
log-interval: 4
save: {folder}/saved
peak-tflops: 0.1
"""
PLUGIN = """
from neox_core.api import Component, hookimpl


@hookimpl
def neox_feed_forwards():
    return [Component("odd", "odd_parts:make", summary="One that goes wrong.", planner="odd_parts:size")]


def size(shape, settings):
    from neox_gpt.api import FeedForwardSize

    return FeedForwardSize({"inner.weight": (shape.hidden_size,) * 2, "inner.bias": (shape.hidden_size,)})


def make(shape, activation, tensor, settings):
    import os

    import torch

    class Odd(torch.nn.Module):
        flops_per_token = 1

        def __init__(self):
            super().__init__()
            self.layer, self.calls = shape.layer, 0
            self.inner = torch.nn.Linear(shape.hidden_size, shape.hidden_size)

        def forward(self, x):
            self.calls += self.training and x.shape[1] > 2
            made = self.inner(x)
            wrong = self.layer == 1 and self.calls >= 6 and os.environ.get("RANK") == os.environ["WRONG_RANK"]
            return CHANGE if wrong else made

    return Odd()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what the runs have compiled."""
    return tmp_path_factory.mktemp("cache")


def run(folder: Path, cache: Path, change: str, code: int, more: str = "", **values: Any) -> str:
    """What a run says that fails. more: lines of its config."""
    (folder / "mine").mkdir()
    (folder / "mine/odd_parts.py").write_text(PLUGIN.replace("CHANGE", change))
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": f"document {n} of a text"}) for n in range(200)))
    (folder / "run.yml").write_text(CONFIG.format(folder=folder, **values) + more)
    wrong = str(values["ranks"] - 1)
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "WRONG_RANK": wrong}
    argv = [sys.executable, "-m", "neox_core", "--plugins-dir", "mine", "train", "run.yml"]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("engine", "ranks", "layout"),
    [
        ("plain", 1, ""),
        ("deepspeed", 2, ""),
        ("deepspeed", 2, "zero_optimization: {stage: 3}"),
        ("deepspeed", 2, "pipe-parallel-size: 2"),
        ("plain", 2, "model-parallel-size: 2"),
    ],
)
def test_a_loss_that_becomes_nan_names_the_part_that_made_it(
    engine: str, ranks: int, layout: str, cache: Path, tmp_path: Path
) -> None:
    said = run(tmp_path, cache, "made * float('nan')", 6, layout, engine=engine, ranks=ranks)
    heard = "0, 1" if "parallel" in layout else ranks - 1  # the last stage tells its loss, tensor ranks share theirs
    assert f"the loss is nan at step 6 on rank {heard}: the first number that is not finite is what" in said
    assert "layers.1.mlp (feed forward odd-parts:odd 0+" in said


def test_another_shape_names_the_part_that_gave_it(cache: Path, tmp_path: Path) -> None:
    said = run(tmp_path, cache, "made[:, :1]", 3, engine="plain", ranks=1)
    assert "feed forward odd-parts:odd 0+" in said
    assert "in a step it gives float32 [2, 1, 32], not float32 [2, 16, 32]: its contract says that result" in said
