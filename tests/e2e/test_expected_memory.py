"""The memory that is told before a start, next to what two ranks then hold in each layout."""

import json
from typing import Any

import pytest

from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import digest, write_runfile

pytestmark = pytest.mark.ranks

CONFIG: dict[str, Any] = {
    "num-layers": 4,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 16,
    "max-position-embeddings": 16,
    "padded-vocab-size": 64,
    "pos-emb": "rotary",
    "no-weight-tying": True,
    "hidden-dropout": 0,
    "attention-dropout": 0,
    "data-path": "none",
    "device": "cpu",
    "num_gpus": 2,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "train-iters": 10,
}
ZERO = {"overlap_comm": False, "reduce_bucket_size": 4096}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"engine": "plain"},
    "plain-tensor": {"engine": "plain", "model-parallel-size": 2},
    "zero-0": {"zero_optimization": {"stage": 0}},
    "zero-1": {"zero_optimization": {"stage": 1, **ZERO}},
    "zero-2": {"zero_optimization": {"stage": 2, **ZERO}, "gradient_accumulation_steps": 1},
    "zero-3": {"zero_optimization": {"stage": 3, **ZERO}, "gradient_accumulation_steps": 1},
    "zero-1-bf16": {"zero_optimization": {"stage": 1, **ZERO}, "bf16": {"enabled": True}},
    "zero-2-bf16": {"zero_optimization": {"stage": 2, **ZERO}, "bf16": {"enabled": True}},
    "zero-3-bf16": {"zero_optimization": {"stage": 3, **ZERO}, "bf16": {"enabled": True}},
    "tensor": {"model-parallel-size": 2},
    "tensor-sequence": {"model-parallel-size": 2, "sequence-parallel": True},
    "pipe": {"pipe-parallel-size": 2},
    "pipe-bf16": {"pipe-parallel-size": 2, "zero_optimization": {"stage": 1, **ZERO}, "bf16": {"enabled": True}},
}
LARGEST = 64 * 4 * 64
"""Elements of the largest parameter, which is longer than a bucket."""


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, start: Any) -> dict[str, tuple[Any, list[dict[str, int]]]]:
    """What is told of each case, and what each rank holds."""
    out = tmp_path_factory.mktemp("held")
    told, cases, catalog = {}, [], load_plugins()
    for name, changes in CASES.items():
        (out / "c.json").write_text(json.dumps({**CONFIG, **changes}))
        resolved = prepare_run([out / "c.json"], catalog=catalog, start=False)
        write_runfile(resolved.plan, out / f"{name}.run.json")
        told[name] = resolved.memory
        cases.append({"name": name, "run": str(out / f"{name}.run.json"), "digest": digest(resolved.plan)})
    start("held.py", out, {2: cases})
    return {name: (told[name], json.loads((out / "2" / f"{name}.json").read_text())) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_the_fullest_rank_holds_what_was_told(memory: Any, name: str) -> None:
    """To the byte; beside its parts of the gradients, ZeRO 2 and 3 hold at most the largest one whole."""
    told, ranks = memory[name]
    fullest = {part: max(rank[part] for rank in ranks) for part in ("weights", "masters", "state", "gradients")}
    beside = fullest.pop("gradients") - told.gradients
    assert {part: getattr(told, part) for part in fullest} == fullest
    whole = LARGEST * (2 if "bf16" in name else 4)
    assert 0 <= beside <= (whole if name.startswith(("zero-2", "zero-3")) else 0)
