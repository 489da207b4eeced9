"""The counts of `neox plan` beside the checkpoints of small runs, and closed forms by hand."""

import json
import subprocess
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest
from neox_plan.scale import BLOCK, GENERATORS, NAMES, scale

from neox_core.contracts.architecture import Shapes
from neox_core.hooks.loader import load_plugins
from neox_core.interpreter import python
from neox_core.plan.resolve import Resolved, prepare_run

CONFIG: dict[str, Any] = {
    "num-layers": 2,
    "hidden-size": 32,
    "num-attention-heads": 4,
    "seq-length": 16,
    "max-position-embeddings": 16,
    "padded-vocab-size": 512,
    "data-path": "text.txt",
    "data-impl": "text",
    "tokenizer-type": "CharLevelTokenizer",
    "split": "1,0,0",
    "eval-iters": 0,
    "num-workers": 0,
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "train-iters": 1,
    "save": "run",
    "save-interval": 1,
    "bf16": {"enabled": True},
}
CPU = {"device": "cpu", "num_gpus": 2}


def resolve(folder: Path, cluster: str | None = None, **more: Any) -> Resolved:
    (folder / "c.json").write_text(json.dumps(CONFIG | more))
    return prepare_run([folder / "c.json"], catalog=load_plugins(), start=False, cluster=cluster)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "layout",
    [
        {"zero_optimization": {"stage": 1}},
        {"zero_optimization": {"stage": 3}},
        {"zero_optimization": {"stage": 1}, "model-parallel-size": 2},
    ],
    ids=["zero 1", "zero 3", "tensor 2"],
)
def test_a_checkpoint_of_two_ranks_has_what_was_told(tmp_path: Path, layout: dict[str, Any]) -> None:
    found = scale(resolve(tmp_path, **CPU, **layout)).counts
    (tmp_path / "text.txt").write_text("zero one two three four " * 200)
    words = [*python("neox_core"), "train", "c.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "run").glob("step-*")
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert found["files"] == found["in_a_folder"] == len(files) == 3 * 2 + 3
    manifest = json.loads((folder / "manifest.json").read_text())
    pieces = [each for each in manifest["pieces"] if each["shape"]]  # not the numbers of steps
    assert sum(each["kind"] == "rng" for each in pieces) == GENERATORS * 2
    assert found["pieces"] == pytest.approx(len(pieces), rel=0.1)
    assert found["listed_bytes"] == found["read_bytes"]
    assert found["listed_bytes"] == pytest.approx((folder / "manifest.json").stat().st_size, rel=0.2)


def shapes_of(resolved: Resolved) -> Shapes:
    assert resolved.size is not None
    return resolved.size.shapes


def test_zero_3_cuts_every_tensor_for_every_rank(tmp_path: Path) -> None:
    """Weight, fp32 copy and two states of each, of 16 data-parallel ranks."""
    resolved = resolve(tmp_path, "2x8", zero_optimization={"stage": 3})
    sizes = [prod(each) for each in shapes_of(resolved).values()]
    assert min(sizes) >= 32
    pieces = 4 * sum(ceil(each / ceil(each / 16)) for each in sizes)
    assert scale(resolved).counts["pieces"] == pieces + GENERATORS * 16


def test_zero_1_adds_a_cut_for_each_rank(tmp_path: Path) -> None:
    """One group of vectors and one of all others, each cut once between two ranks, of the fp32 copy and two states."""
    resolved = resolve(tmp_path, "2x8", zero_optimization={"stage": 1})
    tensors = len(shapes_of(resolved))
    pieces = scale(resolved).counts["pieces"] - GENERATORS * 16 - 4 * tensors
    assert 0 < pieces <= 3 * 2 * 15


def test_connections_and_logins_by_hand(tmp_path: Path) -> None:
    found = scale(resolve(tmp_path, "1024x8", launcher="pdsh", train_batch_size=16384)).counts
    assert found["files"] == 3 * 8192 + 3 + (found["in_a_folder"] - 3 * 256 - 3)
    assert (found["store"], found["logins"]) == (9216, 32)
    assert found["peers"] == 90 + 90  # 8,192 ranks in 91 blocks of 91
    assert found["groups"] == 3  # all ranks, a block, and the first ranks of the blocks
    assert set(found) == set(NAMES)
    flat = resolve(tmp_path, "1024x8", launcher="pdsh", train_batch_size=16384, **{"pdsh-tree-from": 0})
    assert scale(flat).counts["logins"] == 1024
    few = scale(resolve(tmp_path, "1x8", launcher="slurm")).counts
    assert (few["store"], few["logins"], few["peers"], few["groups"]) == (9, 0, 7, 2)


def test_ranks_agree_in_blocks_as_the_core_has_them() -> None:
    agreement = pytest.importorskip("neox_core.parallel.agreement")
    assert agreement.BLOCK == BLOCK


def test_what_grows_faster_than_the_hosts_is_named(tmp_path: Path) -> None:
    resolved = resolve(tmp_path, "128x8", zero_optimization={"stage": 3}, launcher="pdsh", train_batch_size=16384)
    assert scale(resolved).faster == ["read_by_all_bytes"]
