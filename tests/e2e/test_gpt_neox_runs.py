"""Recipes of GPT-NeoX as they are, scaled down by `--set`, train."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpt_neox_facts import written

from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

DRIVE = Path(__file__).with_name("drive.py")
SMALL = (
    "hidden-size=64 num-attention-heads=4 num-layers=2 seq-length=32 max-position-embeddings=32 padded-vocab-size=128 "
    "tokenizer-type=null vocab-file=null merge-file=null train-iters=20 lr-decay-iters=20 eval-iters=0 num-workers=0 "
    "train_micro_batch_size_per_gpu=2 train_batch_size=4 model-parallel-size=1 distributed-backend=gloo fp16=null"
)
RECIPES = {
    "125M": (("125M", "local_setup"), ()),
    "7B": (("llama/7B", "llama/train_config", "local_setup"), ("intermediate-size=512", "finetune=false")),
    "160M": (("pythia/160M", "local_setup"), ("attention-config=[[[flash], 2]]",)),
}


def test_recipes_of_gpt_neox_train_scaled_down(tmp_path: Path) -> None:
    catalog = load_plugins()
    _write_dataset(catalog, tmp_path / "tokens")
    runs = []
    for name, (files, more) in RECIPES.items():
        save = tmp_path / f"run-{name}"
        sets = [*SMALL.split(), *more, f"data-path={tmp_path}/tokens", f"save={save}", f"load={save}"]
        plan = prepare_run(written(files, tmp_path), sets, catalog=catalog, machine=Machine(0, 1), resume=None).plan
        assert (plan.checkpoint.resume, plan.train.train_iters) == ("auto", 20)
        write_runfile(plan, save / "run.json")
        runs.append(save)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = {"ranks": 1, "port": port, "files": [str(run / "run.json") for run in runs], "kill_after": None}
    done = subprocess.run(
        [sys.executable, str(DRIVE), json.dumps([launch])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for run in runs:
        losses = json.loads((run / "seen.json").read_text())["losses"]
        assert list(losses)[-1] == "20"
        assert losses["1"] == pytest.approx(np.log(128), abs=0.35)
        assert losses["20"] == pytest.approx(np.log(128), abs=0.5)  # the tokens are random
        assert (run / "step-00000020").is_dir()


def _write_dataset(catalog: Any, prefix: Path) -> None:
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(prefix, 128)
    draw = np.random.default_rng(0)
    for _ in range(100):
        writer.add_document(draw.integers(0, 120, int(draw.integers(20, 60))).tolist())
    writer.close()
