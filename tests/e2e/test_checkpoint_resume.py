"""Runs of real processes over gloo: resumed ones end on the same bits, and every layout trains the same model."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from neox_author.testing.ports import free_port
from torch import Tensor

from neox_core.checkpoint.checkpointer import read_weights
from neox_core.checkpoint.read import CheckpointReader
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

DRIVE = Path(__file__).with_name("drive.py")
BASE = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
pos-emb: rotary
split: 90,10,0
num-workers: 0
padded-vocab-size: 128
optimizer: {type: Adam, params: {lr: 3.0e-3}}
weight-decay: 0.1
gradient_clipping: 1.0
lr-decay-style: cosine
warmup: 0.2
train_batch_size: 8
train-iters: 6
eval-interval: 2
eval-iters: 1
log-interval: 1
save-interval: 3
"""
# By name: precision, ZeRO stage (None: the engine plain), micro-batches accumulated. Each trains with dropout, on
# 1 rank and on 2.
RESUMED = {
    "fp32-z0": ({}, 0, 1),
    "fp32-z1": ({}, 1, 2),
    "bf16-z0": ({"bf16": {"enabled": True}}, 0, 2),
    "bf16-z1": ({"bf16": {"enabled": True}}, 1, 1),
    "bf16-z1-owned": (
        {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1, "allgather_partitions": False}},
        1,
        2,
    ),
    "fp32-z2": ({}, 2, 2),
    "fp32-z3": ({}, 3, 1),
    "bf16-z3": ({"bf16": {"enabled": True}}, 3, 2),
    "fp32-plain": ({}, None, 2),
    "autocast-z0": ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, 0, 2),
}
# Without dropout, for 12 steps: ZeRO stage, ranks, micro-batches accumulated, keys.
CALM = {"hidden-dropout": 0.0, "attention-dropout": 0.0, "train-iters": 12, "save-interval": 6}
CPU = {"device": "cpu"}
HPZ = {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 100}
EQUAL: dict[str, tuple[int, int, int, dict[str, object]]] = {
    "plain": (0, 1, 1, {}),
    "accumulated": (0, 1, 2, {}),
    "ranks": (0, 2, 1, {}),
    "zero": (1, 2, 1, {}),
    "zero-owned": (1, 2, 1, {"allgather_partitions": False}),
    "zero-alone": (1, 1, 2, {}),
    "zero-2": (2, 2, 1, {}),
    "zero-2-dealt": (2, 2, 1, {"round_robin_gradients": True, "offload_optimizer": CPU}),
    "zero-3": (3, 2, 1, {"stage3_param_persistence_threshold": 100}),
    "zero-3-groups": (3, 2, 2, {"sub_group_size": 2000, "stage3_gather_16bit_weights_on_model_save": True}),
    "zero-3-hpz": (3, 2, 1, HPZ),
    "zero-3-offloaded": (3, 2, 1, {"offload_optimizer": CPU, "offload_param": CPU}),
}
# Resumed at step 6 from the checkpoint of another run, on another number of ranks or another stage.
MOVED = {
    "to-1-rank": ("zero", 1, 1, 2),
    "to-1-rank-z0": ("zero", 0, 1, 1),
    "to-2-ranks-z0": ("zero", 0, 2, 1),
    "owned-to-slices": ("zero-owned", 1, 2, 1),
    "1-to-3": ("zero", 3, 2, 1),
    "2-to-1-rank": ("zero-2", 0, 1, 1),
    "3-to-1-rank-z0": ("zero-3", 0, 1, 1),
    "3-to-1-rank-z3": ("zero-3", 3, 1, 1),
    "3-to-2": ("zero-3-groups", 2, 2, 1),
    "3-to-hpz": ("zero-3", 3, 2, 1),
    "offloaded-to-1": ("zero-3-offloaded", 1, 2, 1),
}

COMPILED = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path.home() / ".cache/torch_extensions"))
with_files = pytest.mark.skipif(
    not any(COMPILED.glob("**/async_io.so")),
    reason="DeepSpeed's async_io is not compiled: install libaio-dev, and train once with offload to nvme",
)
# State in files, for 6 steps: keys of the run, blocks of ZeRO 3 that are in files, keys of aio.
FILED: dict[str, tuple[dict[str, object], tuple[str, ...], dict[str, object]]] = {
    "none": ({}, (), {}),
    "optimizer": ({}, ("offload_optimizer",), {"thread_count": 2, "single_submit": True}),
    "weights": ({}, ("offload_param",), {"overlap_events": False, "queue_depth": 2}),
    "both": ({}, ("offload_optimizer", "offload_param"), {}),
    "both-bf16": ({"bf16": {"enabled": True}}, ("offload_optimizer", "offload_param"), {}),
}
# From the checkpoint of step 3 of one to the end as another, on so many ranks.
REFILED = {
    "both-again": ("both", "both", 2),
    "both-bf16-again": ("both-bf16", "both-bf16", 2),
    "none-to-both": ("none", "both", 2),
    "both-to-none": ("both", "none", 2),
    "both-to-1-rank": ("both", "both", 1),
}


class Lab:
    """A folder of runs, and the launches that do them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = load_plugins()
        _write_dataset(self.catalog, folder / "tokens")
        (folder / "base.yml").write_text(f"{BASE}data-path: {folder / 'tokens'}\n")

    def plan(
        self, name: str, ranks: int, zero: int | None, accumulation: int, file: str = "run.json", **keys: object
    ) -> Path:
        """Resolve a run as `neox train` does, and write its run file."""
        keys = {"num_gpus": ranks, "gradient_accumulation_steps": accumulation, "save": str(self.folder / name), **keys}
        engine = {"engine": "plain"} if zero is None else {"zero_optimization": {"stage": zero}}
        keys = {"device": "cpu", **engine, **keys}
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        resolved = prepare_run([self.folder / "base.yml"], sets, catalog=self.catalog)
        path = Path(resolved.plan.run_dir, file)
        write_runfile(resolved.plan, path)
        return path

    def drive(self, launches: list[dict[str, object]]) -> None:
        """Do these launches one after the other, each in fresh processes."""
        argv = [sys.executable, str(DRIVE), json.dumps(launches)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400, check=False
        )
        assert (done.returncode, done.stdout) == (0, "")  # not a word of the engine's

    def launch(self, ranks: int, files: list[Path], kill_after: int | None = None) -> dict[str, object]:
        """All runs of one set of processes; kill_after: the step after which all of them are killed."""
        port = free_port()
        return {"ranks": ranks, "port": port, "files": [str(file) for file in files], "kill_after": kill_after}

    def seen(self, name: str) -> Mapping[str, object]:
        return json.loads((self.folder / name / "seen.json").read_text())

    def weights(self, name: str, step: int = 6) -> dict[str, Tensor]:
        return read_weights(self.folder / name / f"step-{step:08d}")

    def sums(self, name: str, step: int = 6) -> dict[str, str]:
        """SHA-256 of each file of tensors: weights, optimizer and generators of every rank."""
        files = (self.folder / name / f"step-{step:08d}").glob("*.safetensors")
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """All runs: first those from step 0, then in fresh processes those that resume them."""
    lab = Lab(tmp_path_factory.mktemp("runs"))
    first: dict[int, list[Path]] = {1: [], 2: []}
    then: dict[int, list[Path]] = {1: [], 2: []}
    for ranks in (1, 2):
        for name, (precision, zero, accumulation) in RESUMED.items():
            keys = {"hidden-dropout": 0.1, "attention-dropout": 0.1, **precision}
            run = f"{name}-{ranks}"
            first[ranks].append(lab.plan(run, ranks, zero, accumulation, **keys))
            load = str(lab.folder / run / "step-00000003")
            (lab.folder / run / "step-00000003").mkdir(parents=True)  # the plan must name what will be there
            then[ranks].append(lab.plan(f"{run}-resumed", ranks, zero, accumulation, load=load, **keys))
    precision, zero, accumulation = RESUMED["fp32-z1"]
    launches = []
    for ranks in (1, 2):
        keys = {"hidden-dropout": 0.1, "attention-dropout": 0.1, **precision}
        launches.append(lab.launch(ranks, [lab.plan(f"killed-{ranks}", ranks, zero, accumulation, **keys)], 5))
        load = str(lab.folder / f"killed-{ranks}")
        then[ranks].append(lab.plan(f"killed-{ranks}", ranks, zero, accumulation, "again.json", load=load, **keys))
    for name, (zero, ranks, accumulation, keys) in EQUAL.items():
        block = {"zero_optimization": {"stage": zero, **keys}}
        first[ranks].append(lab.plan(name, ranks, zero, accumulation, **CALM, **block))
    for name, (source, zero, ranks, accumulation) in MOVED.items():
        load = str(lab.folder / source / "step-00000006")
        block = {"zero_optimization": {"stage": zero, **(HPZ if name == "3-to-hpz" else {})}}
        then[ranks].append(lab.plan(name, ranks, zero, accumulation, load=load, **CALM, **block))
    lab.drive(launches + [lab.launch(ranks, files) for some in (first, then) for ranks, files in some.items()])
    return lab


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", RESUMED)
def test_resuming_changes_no_bit(lab: Lab, name: str, ranks: int) -> None:
    run = f"{name}-{ranks}"
    through, resumed = lab.seen(run), lab.seen(f"{run}-resumed")
    assert resumed["losses"] == {step: loss for step, loss in through["losses"].items() if int(step) > 3}
    assert resumed["rates"] == through["rates"][3:]
    assert lab.sums(f"{run}-resumed") == lab.sums(run)
    assert len(lab.sums(run)) == 3 * ranks  # weights, optimizer, generators


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_ends_as_one_that_was_left_alone(lab: Lab, ranks: int) -> None:
    """Killed after step 5, it goes on from its checkpoint of step 3."""
    assert list(lab.seen(f"killed-{ranks}")["losses"]) == ["4", "5", "6"]
    assert lab.sums(f"killed-{ranks}") == lab.sums(f"fp32-z1-{ranks}")


def test_dropout_matters(lab: Lab) -> None:
    """So the tests above would see masks that are not drawn again as they were."""
    assert lab.seen("fp32-z0-1")["losses"]["1"] != lab.seen("plain")["losses"]["1"]


@pytest.mark.parametrize("name", [name for name in EQUAL if name != "plain"])
def test_every_layout_trains_the_same(lab: Lab, name: str) -> None:
    _assert_close(lab.weights(name, 12), lab.weights("plain", 12))
    mine, right = (list(lab.seen(run)["losses"].values()) for run in (name, "plain"))
    if EQUAL[name][1] == 1:  # one rank sees the whole batch
        assert mine == pytest.approx(right, rel=1e-5)
    assert right[-1] < right[0] - 0.05  # it learns


@pytest.mark.parametrize("name", MOVED)
def test_another_layout_goes_on(lab: Lab, name: str) -> None:
    _assert_close(lab.weights(name, 12), lab.weights("plain", 12))
    notes = lab.seen(name)["notes"]
    assert any("random" in note for note in notes) == (MOVED[name][2] != 2)


def test_a_checkpoint_of_zero_3_has_a_part_of_each_weight_per_rank_or_all_of_it(lab: Lab) -> None:
    for name, parts in {"zero-3": 2, "zero-3-groups": 1}.items():
        reader = CheckpointReader(lab.folder / name / "step-00000012")
        pieces = [piece for piece in reader.manifest.pieces if piece.name == "embedding.weight"]
        assert sum(piece.kind == "weight" for piece in pieces) == parts
        assert sum(piece.state == "exp_avg" for piece in pieces) == 2


def test_zero_1_shards(lab: Lab) -> None:
    """Two ranks hold about half of the optimizer's state each; at ZeRO 0 both hold all of it."""
    assert lab.seen("zero")["optimizer"] == "sharded"
    assert lab.seen("ranks")["optimizer"] == "replicated"
    sizes = [file.stat().st_size for file in (lab.folder / "zero" / "step-00000012").glob("*.optimizer.safetensors")]
    assert len(sizes) == 2
    assert max(sizes) < 1.3 * min(sizes)


@pytest.fixture(scope="module")
def filed(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Runs on two ranks whose state is in files, written and read by DeepSpeed, and those that go on from them."""
    lab = Lab(tmp_path_factory.mktemp("filed"))
    (lab.folder / "disk").mkdir()

    def plan(run: str, name: str, ranks: int, **more: object) -> Path:
        keys, blocks, aio = FILED[name]
        file = {"device": "nvme", "nvme_path": str(lab.folder / "disk")}
        weights = {**file, "max_in_cpu": 0, "buffer_size": 4096}
        zero = {block: weights if block == "offload_param" else file for block in blocks}
        zero |= {"sub_group_size": 9000, "stage3_param_persistence_threshold": 100}
        keys = {**CALM, "train-iters": 6, "save-interval": 3, **keys, **more} | (
            {"aio": {"block_size": 1024, **aio}} if blocks else {}
        )
        return lab.plan(run, ranks, 3, 1, zero_optimization={"stage": 3, **zero}, **keys)

    first = [plan(name, name, 2) for name in FILED]
    then: dict[int, list[Path]] = {1: [], 2: []}
    for run, (source, name, ranks) in REFILED.items():
        then[ranks].append(plan(run, name, ranks, load=str(lab.folder / source / "step-00000003")))
    lab.drive([lab.launch(2, first), *(lab.launch(ranks, files) for ranks, files in then.items())])
    return lab


@with_files
@pytest.mark.parametrize("name", [name for name in (*FILED, *REFILED) if "bf16" not in name and name != "none"])
def test_state_in_files_trains_the_same(filed: Lab, name: str) -> None:
    _assert_close(filed.weights(name), filed.weights("none"))


@with_files
@pytest.mark.parametrize("name", ["both", "both-bf16"])
def test_resuming_from_files_changes_no_bit(filed: Lab, name: str) -> None:
    assert filed.sums(f"{name}-again") == filed.sums(name)
    assert len(filed.sums(name)) == 6


@with_files
@pytest.mark.parametrize("name", ["optimizer", "weights", "both", "both-again"])
def test_state_is_in_files(filed: Lab, name: str) -> None:
    (own,) = (filed.folder / "disk").glob(f"neox-{name}-????????")
    files = [file.name for file in own.rglob("*.swp") if file.stat().st_size]
    assert any("exp_avg_sq" in file for file in files) == (name != "weights")
    assert any("_param" in file for file in files) == (name != "optimizer")


def _assert_close(weights: dict[str, Tensor], reference: dict[str, Tensor]) -> None:
    assert weights.keys() == reference.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(
            tensor, reference[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def _write_dataset(catalog: object, prefix: Path) -> None:
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(prefix, 128)
    draw = np.random.default_rng(0)
    for _ in range(200):
        length, start = int(draw.integers(10, 60)), int(draw.integers(0, 100))
        writer.add_document(((start + 3 * np.arange(length)) % 120).tolist())
    writer.close()
