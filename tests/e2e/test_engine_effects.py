"""What keys of ZeRO, precision and communication change in a run of two ranks: the collectives, and who holds what."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neox_author.testing.ports import free_port

from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

OBSERVE = Path(__file__).with_name("observe.py")
BASE = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
pos-emb: rotary
split: 100,0,0
eval-iters: 0
num-workers: 0
padded-vocab-size: 128
hidden-dropout: 0.0
attention-dropout: 0.0
optimizer: {type: Adam, params: {lr: 1.0e-3}}
train_batch_size: 4
train-iters: 2
device: cpu
num_gpus: 2
"""


def _zero(stage: int, **keys: object) -> dict[str, object]:
    return {"zero_optimization": {"stage": stage, **keys}}


BF16 = {"bf16": {"enabled": True}}
ADDED: dict[str, object] = {**BF16, **_zero(1), "gradient_accumulation_steps": 2, "fp32_allreduce": True}
UNTIED: dict[str, object] = {"no-weight-tying": True, "gradient_accumulation_steps": 2}
RUNS: dict[str, dict[str, object]] = {
    "plain": {},
    "sent-bf16": {"communication_data_type": "bf16"},
    "bf16": BF16,
    "bf16-sent-fp32": {**BF16, "fp32_allreduce": True},
    "prescaled": {"prescale_gradients": True},
    "predivided": {"gradient_predivide_factor": 4.0},
    "untied": UNTIED,
    "rows": {**UNTIED, "sparse_gradients": True},
    "amp": {"amp": {"enabled": True, "opt_level": "O1"}},
    "amp-O0": {"amp": {"enabled": True, "opt_level": "O0"}},
    "1": _zero(1),
    "1-small-buckets": _zero(1, reduce_bucket_size=1000),
    "1-broadcasts": _zero(1, allgather_partitions=False),
    "1-after": _zero(1, reduce_bucket_size=1000, grad_hooks=False),
    "1-within": _zero(1, reduce_bucket_size=1000, overlap_comm=True),
    "1-added-bf16": ADDED,
    "1-added-fp32": {**ADDED, "data_types": {"grad_accum_dtype": "fp32"}},
    "2": _zero(2),
    "2-no-scatter": _zero(2, reduce_scatter=False),
    "3": _zero(3),
    "3-none-kept": _zero(3, stage3_param_persistence_threshold=0),
    "3-no-prefetch": _zero(3, stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=0),
    "3-few-live": _zero(
        3, stage3_param_persistence_threshold=0, stage3_max_live_parameters=0, stage3_max_reuse_distance=0
    ),
    "3-groups": _zero(3, sub_group_size=2000),
}
Seen = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """By run, what rank 0 saw in its second step."""
    folder = tmp_path_factory.mktemp("runs")
    catalog = load_plugins()
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(folder / "tokens", 128)
    for start in range(40):
        writer.add_document((np.arange(start, start + 50) % 120).tolist())
    writer.close()
    (folder / "base.yml").write_text(f"{BASE}data-path: {folder / 'tokens'}\n")
    files = []
    for name, keys in RUNS.items():
        sets = [f"{key}={json.dumps(value)}" for key, value in {**keys, "save": str(folder / name)}.items()]
        plan = prepare_run([folder / "base.yml"], [*sets, "save-interval=9"], catalog=catalog).plan
        files.append(folder / name / "run.json")
        write_runfile(plan, files[-1])
    _run(files)
    return {name: json.loads((folder / name / "seen-0.json").read_text()) for name in RUNS}


def _run(files: list[Path]) -> None:
    port = str(free_port())
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(OBSERVE), *map(str, files)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)


def _gradients(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What this rank gave to be summed: whole gradients and parts of them, not norms and flags."""
    return [call for call in run["calls"] if "reduce" in call["name"] and call["numel"] > 100]


def _weights_gathered(run: Mapping[str, Any]) -> int:
    return sum(call["numel"] for call in run["calls"] if "all_gather" in call["name"] and call["numel"] > 100)


def _count(run: Mapping[str, Any], name: str) -> int:
    return sum(call["name"] == name for call in run["calls"])


@pytest.mark.parametrize(
    ("run", "dtype"),
    [("plain", "float32"), ("sent-bf16", "bfloat16"), ("bf16", "bfloat16"), ("bf16-sent-fp32", "float32")],
)
def test_the_type_that_is_sent(seen: Seen, run: str, dtype: str) -> None:
    assert {call["dtype"] for call in _gradients(seen[run])} == {f"torch.{dtype}"}


@pytest.mark.parametrize(("run", "rounded"), [("1-added-bf16", True), ("1-added-fp32", False)])
def test_the_type_in_which_gradients_add_up(seen: Seen, run: str, rounded: bool) -> None:
    """Both are sent in fp32; the sum of two in bf16 has the digits of one."""
    assert {(call["dtype"], call["rounded"]) for call in _gradients(seen[run])} == {("torch.float32", rounded)}


@pytest.mark.parametrize(("run", "share"), [("prescaled", 2), ("predivided", 4)])
def test_gradients_divided_before_the_sum(seen: Seen, run: str, share: float) -> None:
    size, whole = (sum(call["size"] for call in _gradients(seen[each])) for each in (run, "plain"))
    assert size == pytest.approx(whole / share, rel=1e-5)
    assert seen[run]["norm"] == pytest.approx(seen["plain"]["norm"], rel=1e-5)


def test_only_rows_that_were_used_are_sent(seen: Seen) -> None:
    """Two samples a rank of 32 tokens use no more than 64 of the 128 rows."""
    rows, whole = seen["rows"], seen["untied"]
    table, width = 128 * 32, 32
    summed, without = (sum(call["numel"] for call in _gradients(each)) for each in (whole, rows))
    assert summed - without == table
    sent = max(call["numel"] for call in rows["calls"] if call["name"] == "all_gather")
    assert width <= sent <= 64 * width
    assert sent % width == 0
    assert rows["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert rows["norm"] == pytest.approx(whole["norm"], rel=1e-5)


@pytest.mark.parametrize(
    ("run", "weights", "matmuls"),
    [
        ("plain", "float32", "float32"),
        ("bf16", "bfloat16", "bfloat16"),
        ("amp", "float32", "bfloat16"),
        ("amp-O0", "float32", "float32"),
    ],
)
def test_the_type_of_weights_and_matmuls(seen: Seen, run: str, weights: str, matmuls: str) -> None:
    assert seen[run]["weight_types"] == [f"torch.{weights}"]
    assert f"mlp torch.{matmuls}" in seen[run]["hidden"]
    assert seen[run]["types"] == ["torch.float32"]  # what the optimizer steps


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_stage_leaves_each_rank_its_share(seen: Seen, stage: str) -> None:
    total = seen["plain"]["total"]
    assert seen["plain"]["masters"] == seen["plain"]["weights"] == total
    assert seen[stage]["masters"] == pytest.approx(total / 2, rel=0.01)
    assert seen[stage]["weights"] == pytest.approx(total / 2 if stage == "3" else total, rel=0.01)
    assert seen[stage]["loss"] == pytest.approx(seen["plain"]["loss"], rel=1e-5)
    assert seen[stage]["norm"] == pytest.approx(seen["plain"]["norm"], rel=1e-5)


Claim = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
AGAINST: dict[str, tuple[str, str, Claim]] = {
    "reduce_bucket_size: more collectives": (
        "1-small-buckets",
        "1",
        lambda a, b: len(_gradients(a)) > len(_gradients(b)),
    ),
    "allgather_partitions: false: each rank broadcasts what it owns": (
        "1-broadcasts",
        "1",
        lambda a, b: (
            _weights_gathered(a) == 0 < _weights_gathered(b)
            and sum(c["numel"] for c in a["calls"] if c["name"] == "_broadcast_coalesced") == a["total"]
            and 0.3 * a["total"] < a["masters"] < 0.7 * a["total"]
        ),
    ),
    "grad_hooks: false: gradients are reduced after the backward pass": (
        "1-after",
        "1-within",
        lambda a, b: not any(c["backward"] for c in _gradients(a)) and all(c["backward"] for c in _gradients(b)[:1]),
    ),
    "reduce_scatter: this rank gives each part once, halved": (
        "2",
        "2-no-scatter",
        lambda a, b: sum(c["size"] for c in _gradients(a)) < 0.51 * sum(c["size"] for c in _gradients(b)),
    ),
    "stage3_param_persistence_threshold: nothing stays whole": (
        "3-none-kept",
        "3",
        lambda a, b: a["whole"] == [] != b["whole"],
    ),
    "stage3_prefetch_bucket_size: gathered when used, one by one": (
        "3-no-prefetch",
        "3-none-kept",
        lambda a, b: _count(a, "all_gather_into_tensor") > _count(b, "all_gather_into_tensor"),
    ),
    "stage3_max_live_parameters: gathered again for the backward pass": (
        "3-few-live",
        "3-no-prefetch",
        lambda a, b: _count(a, "all_gather_into_tensor") > _count(b, "all_gather_into_tensor"),
    ),
    "sub_group_size: more groups are stepped": ("3-groups", "3", lambda a, b: a["stepped"] > b["stepped"]),
}


@pytest.mark.parametrize("effect", AGAINST)
def test_effects_of_keys(seen: Seen, effect: str) -> None:
    run, other, claim = AGAINST[effect]
    assert claim(seen[run], seen[other])
    assert seen[run]["loss"] == pytest.approx(seen["plain"]["loss"], rel=1e-5)  # and the numbers stay
