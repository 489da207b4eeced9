"""Every recipe of `configs/`: as large as its model is published, and two steps of it, scaled down."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neox_author.testing.ports import free_port
from neox_gpt.api import PositionShape
from neox_gpt.gpt import GPT
from neox_gpt.mlp import MLP
from neox_gpt.shape import build_shape, num_parameters
from ruamel.yaml import YAML

from neox_core.data.tokenizer import padded_vocab
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

CONFIGS = Path(__file__).parents[2] / "configs"
DRIVE = Path(__file__).with_name("drive.py")
GPT2_IDS, PILE_IDS = 50257, 50277

# Recipe -> (parameters, by how much the count may differ). Pythia: exact, total of the published checkpoints.
# GPT-3's paper rounds to its names; 19M and 49M are named by what is left without embeddings.
PUBLISHED = {
    "pythia/14M": (14_067_712, 0),
    "pythia/31M": (30_494_720, 0),
    "pythia/70M": (70_426_624, 0),
    "pythia/160M": (162_322_944, 0),
    "pythia/410M": (405_334_016, 0),
    "pythia/1B": (1_011_781_632, 0),
    "pythia/1.4B": (1_414_647_808, 0),
    "pythia/2.8B": (2_775_208_960, 0),
    "pythia/6.9B": (6_857_302_016, 0),
    "pythia/12B": (11_846_072_320, 0),
    "20B": (20_554_567_680, 0),
    "19M": (18_915_328 + 2 * 50304 * 512, 0),
    "49M": (49e6 + 2 * 50304 * 640, 0.005),
    "125M": (125e6, 0.02),
    "350M": (350e6, 0.02),
    "760M": (760e6, 0.02),
    "1.3B": (1.3e9, 0.02),
    "2.7B": (2.7e9, 0.02),
    "6.7B": (6.7e9, 0.02),
    "13B": (13e9, 0.02),
    "175B": (175e9, 0.02),
}
SMALL = {
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 32,
    "max-position-embeddings": 32,
    "padded-vocab-size": 128,
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "train-iters": 2,
    "lr-decay-iters": 2,
    "eval-iters": 0,
    "save-interval": 2,
    "num-workers": 0,
    "model-parallel-size": 1,
    "pipe-parallel-size": 0,
    "device": "cpu",
}
"""fp16 does not train on a CPU, so it is bf16 there; the rest of a recipe stays as it is."""


@pytest.fixture(scope="module")
def plugins() -> Any:
    return load_plugins()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_as_many_parameters_as_its_model_is_published_with(name: str, plugins: Any) -> None:
    published, tolerance = PUBLISHED[name]
    recipe = CONFIGS / f"{name}.yml"
    plan = prepare_run([recipe], ["train_batch_size=null"], catalog=plugins, machine=Machine(8, 64), start=False).plan
    ids = GPT2_IDS if plan.data.tokenizer.name == "GPT2BPETokenizer" else PILE_IDS
    with torch.device("meta"):
        count = num_parameters(_gpt(plan, padded_vocab(plan.model, ids)))
    assert abs(count - published) <= tolerance * published
    assert f"# parameters: {count:,}" in recipe.read_text()


def test_every_recipe_trains_two_steps_scaled_down(plugins: Any, tmp_path: Path) -> None:
    _write_dataset(plugins, tmp_path / "tokens")
    files = [_scaled(name, plugins, tmp_path) for name in PUBLISHED]
    port = free_port()
    launch = {"ranks": 1, "port": port, "files": [str(file) for file in files], "kill_after": None}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(DRIVE), json.dumps([launch])], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for file in files:
        losses = json.loads((file.parent / "seen.json").read_text())["losses"]
        assert list(losses) == ["1", "2"]
        # an untrained model knows nothing: ln of the vocabulary, and somewhat more for the spread of its logits
        assert losses["1"] == pytest.approx(np.log(128), abs=0.35), file
        assert losses["2"] != losses["1"]
        assert (file.parent / "step-00000002").is_dir()


def test_the_recipe_with_a_pipeline_trains_two_steps_in_one(plugins: Any, tmp_path: Path) -> None:
    _write_dataset(plugins, tmp_path / "tokens")
    run_file = _scaled("20B", plugins, tmp_path, **{"pipe-parallel-size": 2, "num_gpus": 2})
    scaled = tmp_path / "20B.yml"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "neox_core", "train", str(scaled)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (run_file.parent / "step-00000002").is_dir()
    last = json.loads((run_file.parent / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2


def _gpt(plan: Any, vocab_size: int) -> GPT:
    """The whole model without memory for its weights."""
    (make_norm, norm), (make_activation, activation), (make_position, position) = (
        part.load() for part in (plan.model.norm, plan.model.activation, plan.model.position)
    )
    nonlinearity = make_activation(activation)
    shape = build_shape(plan.model, vocab_size, gated=nonlinearity.gated)
    numbers = PositionShape(shape.hidden_size, shape.num_heads, shape.head_dim, shape.max_positions)
    norms = partial(make_norm, shape.hidden_size, norm)
    feed_forward = lambda block: MLP(shape.feed_forward(block), nonlinearity)  # noqa: E731
    return GPT(shape, norms, feed_forward, make_position(numbers, position))


def _scaled(name: str, plugins: Any, folder: Path, **more: Any) -> Path:
    values = YAML(typ="safe").load((CONFIGS / f"{name}.yml").read_text())
    for key in ("tokenizer-type", "vocab-file", "merge-file", "launcher"):
        values.pop(key, None)
    if "fp16" in values:
        del values["fp16"]
        values["bf16"] = {"enabled": True}
    save = folder / name.replace("/", "-")
    values |= {**SMALL, **more, "data-path": str(folder / "tokens"), "save": str(save)}
    scaled = folder / f"{save.name}.yml"
    YAML(typ="safe").dump(values, scaled)
    plan = prepare_run([scaled], catalog=plugins, machine=Machine(0, 1)).plan
    write_runfile(plan, save / "run.json")
    return save / "run.json"


def _write_dataset(catalog: Any, prefix: Path) -> None:
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(prefix, 128)
    draw = np.random.default_rng(0)
    for _ in range(100):
        writer.add_document(draw.integers(0, 120, int(draw.integers(20, 60))).tolist())
    writer.close()
