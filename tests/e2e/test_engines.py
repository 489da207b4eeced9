"""The engines deepspeed, at ZeRO 0, and plain train to the same bits, and each resumes what the other has written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

ENGINES = ("deepspeed", "plain")
DROPOUT = {"position": "rotary", "hidden_dropout": 0.2, "attention_dropout": 0.2, "accumulation": 2}
SHORT: dict[str, Any] = {"position": "rotary", "steps": 4}
ONE_BIT = {"cuda_aware": False, "comm_backend_name": "gloo"}
# name -> what differs from a model with layernorm, gelu, learned positions, tied embeddings and no dropout
FORMS: dict[str, dict[str, Any]] = {
    "dropout": DROPOUT,
    "documents": {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True, "accumulation": 2},
    "curriculum": {"position": "rotary", "curriculum": True, "recompute": {"layers": 1}, "accumulation": 2},
    "autocast": {**DROPOUT, "autocast": "bf16"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "tie_embeddings": False, "num_kv_heads": 2},
    "AdamW": {**SHORT, "optimizer": "AdamW"},
    "SM3": {**SHORT, "optimizer": "SM3"},
    "Lamb": {**SHORT, "optimizer": "Lamb"},
    "Lion": {**SHORT, "optimizer": "Lion", "lr": 0.0003},
    "Muon": {**SHORT, "optimizer": "Muon"},
    "SGD": {**SHORT, "optimizer": "SGD"},
    "Adagrad": {**SHORT, "optimizer": "Adagrad"},
    "RMSprop": {**SHORT, "optimizer": "RMSprop"},
    "Adadelta": {**SHORT, "optimizer": "Adadelta"},
    "Adamax": {**SHORT, "optimizer": "Adamax"},
    "NAdam": {**SHORT, "optimizer": "NAdam"},
    "RAdam": {**SHORT, "optimizer": "RAdam"},
    "OneBitAdam": {**SHORT, "optimizer": "OneBitAdam", "optimizer_settings": {**ONE_BIT, "freeze_step": 2}},
    "ZeroOneAdam": {**SHORT, "optimizer": "ZeroOneAdam", "optimizer_settings": ONE_BIT},
    "OneBitLamb": {**SHORT, "optimizer": "OneBitLamb", "optimizer_settings": {**ONE_BIT, "freeze_step": 2}},
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "dp2": (2, {}),
    "tp2": (2, {"tensor": 2}),
    "tp2sp": (2, {"tensor": 2, "sequence_parallel": True}),
    "tp2dp2": (4, {"tensor": 2}),
}
ONLY = {"tp2": ("dropout", "llama"), "tp2sp": ("llama", "documents"), "tp2dp2": ("documents",)}
CASES = [(layout, form) for layout in LAYOUTS for form in ONLY.get(layout, tuple(FORMS))]
HALFWAY, WHOLE = 2, 4
# layout -> the engines of the first and the second half of a run
SWAPS = [(layout, *pair) for layout in ("alone", "dp2") for pair in (ENGINES, ENGINES[::-1], ("plain", "plain"))]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    """A folder per number of ranks, with a folder of each case in it."""
    out = tmp_path_factory.mktemp("engines")
    cases: dict[int, list[dict[str, Any]]] = {1: [], 2: [], 4: []}
    for layout, form in CASES:
        ranks, changes = LAYOUTS[layout]
        for engine in ENGINES:
            cases[ranks].append({"name": f"{form}-{layout}-{engine}", "engine": engine, **FORMS[form], **changes})
    for layout in ("alone", "dp2"):
        ranks = LAYOUTS[layout][0]
        for engine in ENGINES:
            cases[ranks].append({"name": f"half-{layout}-{engine}", "engine": engine, "steps": HALFWAY, **DROPOUT})
    for layout, first, then in SWAPS:
        ranks = LAYOUTS[layout][0]
        load = str(out / str(ranks) / f"half-{layout}-{first}")
        case = {"name": f"swap-{layout}-{first}-{then}", "engine": then, "load": load, "steps": WHOLE, **DROPOUT}
        cases[ranks].append(case)
    start("layouts.py", out, cases)
    return out


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def stored(folder: Path) -> dict[tuple[str, str, str | None], Tensor]:
    """All tensors of the newest checkpoint: weights, and the optimizer's state."""
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    reader = CheckpointReader(checkpoint)
    reader.verify()
    keys = {(piece.kind, piece.name, piece.state) for piece in reader.manifest.pieces if piece.kind != "rng"}
    return {key: reader.tensor(*key) for key in sorted(keys, key=str)}


def assert_same_bits(found: Path, expected: Path) -> None:
    mine, right = stored(found), stored(expected)
    assert set(mine) == set(right)
    assert [key for key, tensor in right.items() if not torch.equal(mine[key], tensor)] == []


@pytest.mark.parametrize(("layout", "form"), CASES, ids=str)
def test_both_train_to_the_same_bits(out: Path, layout: str, form: str) -> None:
    ranks = LAYOUTS[layout][0]
    expected, found = (out / str(ranks) / f"{form}-{layout}-{engine}" for engine in ENGINES)
    right, mine = told(expected), told(found)
    assert (mine["losses"], mine["norms"], mine["valid"]) == (right["losses"], right["norms"], right["valid"])
    assert right["losses"][-1] < right["losses"][0]
    assert_same_bits(found, expected)


@pytest.mark.parametrize(("layout", "first", "then"), SWAPS, ids=str)
def test_either_resumes_what_the_other_has_written(out: Path, layout: str, first: str, then: str) -> None:
    folder = out / str(LAYOUTS[layout][0])
    straight, swapped = folder / f"dropout-{layout}-plain", folder / f"swap-{layout}-{first}-{then}"
    assert told(swapped)["losses"] == told(straight)["losses"][HALFWAY:]
    assert_same_bits(swapped, straight)
