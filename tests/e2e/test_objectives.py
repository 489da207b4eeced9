"""Objectives and auxiliary losses in every layout of ranks: losses, metrics and gradients of one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.ranks

TOLERANCE = 1e-5
REGULAR = "neox_gpt.mlp:MLP"
GATED = {"feed_forwards": [REGULAR, "loss_parts:Gated"], "feed_forward_of_layer": [0, 1, 1], "num_layers": 3}
FORMS: dict[str, dict[str, Any]] = {
    "smoothed": {"objective": "loss_parts:Smoothed", "position": "rotary", "eod_mask_loss": True, "accumulation": 2},
    "twice": {"objective": "loss_parts:Twice", "hidden_dropout": 0.1, "tie_embeddings": False, "accumulation": 2},
    "auxiliary": {**GATED, "position": "rotary", "reset_attention_mask": True, "accumulation": 2},
    "recomputed": {**GATED, "recompute": {"layers": 2}, "hidden_dropout": 0.1, "accumulation": 2},
    "plain": {"engine": "plain", **GATED, "objective": "loss_parts:Smoothed"},
}
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tp2": {"tensor": 2},
        "tp2sp": {"tensor": 2, "sequence_parallel": True},
        "tp2parted": {
            "tensor": 2,
            "recompute": {"layers": 1, "deepspeed": True, "partition": True, "contiguous": True, "num_checkpoints": 3},
        },
        "dp2z1": {"zero": 1},
        "dp2z3": {"zero": 3},
        "pp2": {"pipe": 2},
        "pp2deepspeed": {"pipe": 2, "recompute": {"layers": 1, "deepspeed": True}},
        "dp2": {},
    },
    4: {"tp2pp2": {"tensor": 2, "pipe": 2, "accumulation": 4}},
}
ONLY = {
    "tp2": ("smoothed", "twice", "auxiliary", "recomputed", "plain"),
    "tp2sp": ("smoothed", "twice", "auxiliary", "recomputed"),
    "tp2parted": ("recomputed",),
    "dp2z1": ("smoothed", "recomputed"),
    "dp2z3": ("smoothed", "twice", "auxiliary", "recomputed"),
    "pp2": ("smoothed", "auxiliary", "recomputed"),
    "pp2deepspeed": ("recomputed",),
    "dp2": ("plain", "twice"),
    "tp2pp2": ("smoothed", "auxiliary"),
}
CASES = [(ranks, layout, form) for ranks, some in LAYOUTS.items() for layout in some for form in ONLY[layout]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    """A folder per number of ranks, with a folder of each case in it."""
    out = tmp_path_factory.mktemp("objectives")
    cases: dict[int, list[dict[str, Any]]] = {1: [{"name": form, **changes} for form, changes in FORMS.items()]}
    for ranks, layout, form in CASES:
        cases.setdefault(ranks, []).append({"name": f"{form}-{layout}", **FORMS[form], **LAYOUTS[ranks][layout]})
    start("layouts.py", out, cases)
    return out


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


@pytest.mark.parametrize(("ranks", "layout", "form"), CASES, ids=str)
def test_equals_one_process(out: Path, ranks: int, layout: str, form: str) -> None:
    expected, found = told(out / "1" / form), told(out / str(ranks) / f"{form}-{layout}")
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(torch.tensor(found["norms"]), torch.tensor(expected["norms"]), rtol=1e-4, atol=0)
    assert abs(found["valid"] - expected["valid"]) < TOLERANCE
    assert found["metrics"][0]
    for one, other in zip(found["metrics"], expected["metrics"], strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    # without dropout the two passes of "twice" are as near as rounding in fp32: 1e-5
    assert found["valid_metrics"] == pytest.approx(expected["valid_metrics"], rel=1e-4, abs=3e-5)
    own = {"smoothed": {"objective_z"}, "plain": {"objective_z"}, "twice": {"objective_apart"}}
    assert {*found["valid_metrics"]} == own.get(form, set()), "parts of the model measure nothing in an evaluation"


def test_a_recomputed_layer_counts_once(out: Path) -> None:
    """The sum of what is logged is what is trained on; the loss of a validation is that of the objective alone."""
    for form in ("auxiliary", "recomputed"):
        for loss, metrics in zip(told(out / "1" / form)["losses"], told(out / "1" / form)["metrics"], strict=True):
            assert {*metrics} == {"objective_loss", "feed_forward_router_z", "feed_forward_passed"}
            assert loss == pytest.approx(metrics["objective_loss"] + metrics["feed_forward_router_z"], rel=1e-5)
            assert 0.3 < metrics["feed_forward_passed"] < 0.7
