"""A run that was trained, made once, and folders like it with what a test writes."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import build, load_only

from neox_core.interpreter import python

CONFIG = """
num-layers: 4
hidden-size: 16
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
norm: rmsnorm
pos-emb: rotary
padded-vocab-size: 64
attention-config: [[[local, global], 2]]
sparsity-config: {{block: 4, num_sliding_window_blocks: 3}}
data-path: {folder}/toy
data-impl: mmap
num-workers: 0
split: 90,10,0
device: cpu
num_gpus: 1
train_micro_batch_size_per_gpu: 2
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
lr-decay-style: constant
train-iters: 12
eval-interval: 6
eval-iters: 1
save-interval: 6
log-interval: 2
peak-tflops: 0.1
engine: plain
seed: 7
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of 12 steps."""
    folder = tmp_path_factory.mktemp("trained")
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "toy", 64)
    for document in range(40):
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(120)])
    writer.close()
    (folder / "config.yml").write_text(CONFIG.format(folder=folder))
    words = [*python("neox_core"), "train", str(folder / "config.yml"), "--set", f"save={folder}/run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


@pytest.fixture
def make_run(trained: Path, tmp_path: Path) -> Callable[..., Path]:
    """A folder with the run.json of `trained`, changed, and the lines of a metrics.jsonl."""

    def make(name: str, lines: list[dict[str, Any]] | None = None, **changed: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        plan = json.loads((trained / "run.json").read_text())
        plan["checkpoint"]["save"] = None
        for block, values in changed.items():
            plan[block] = {**plan[block], **values} if isinstance(values, dict) else values
        (folder / "run.json").write_text(json.dumps(plan))
        if lines is not None:
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
        return folder

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the distribution, without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] * (os.geteuid() == 0))
        yield found
        found.close()
