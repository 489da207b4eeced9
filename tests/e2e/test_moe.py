"""Experts in layouts of ranks: losses, what the router is trained on, and weights are those of one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

SETTINGS = {"moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_z_loss_coeff": 0.01}


def experts(**more: Any) -> dict[str, Any]:
    """Experts in the first layer and the last."""
    moe = ("neox_moe.layer:mixture", "neox_moe.settings:MoESettings", {**SETTINGS, **more})
    return {
        "num_layers": 3,
        "activation": "swiglu",
        "feed_forwards": [moe, "neox_gpt.mlp:MLP"],
        "feed_forward_of_layer": [0, 1, 0],
        "steps": 6,
    }


# By tokens: no number of a layer depends on which tokens are in a micro-batch together. Together: the others.
BY_TOKENS, TOGETHER = experts(moe_loss_coeff=0.0), experts(moe_router_type="sinkhorn", moe_loss_coeff=0.02)
BARE = experts(moe_loss_coeff=0.0, moe_z_loss_coeff=0.0)  # gives metrics and no loss
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tp2": ("together", {"tensor": 2, "save_at": 3}),
    "tp2sp": ("together", {"tensor": 2, "sequence_parallel": True, "recompute": {"layers": 1}}),
    "pp2": ("together", {"pipe": 2, "save_at": 3, "recompute": {"layers": 1}}),
    "pp2bare": ("bare", {"pipe": 2}),
    "dp2z1": ("by tokens", {"zero": 1}),
    "dp2z3": ("by tokens", {"zero": 3}),
    "plain-dp2": ("by tokens", {"engine": "plain"}),
}
AGAIN = {"tp2": "pp2", "pp2": "tp2"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    out = tmp_path_factory.mktemp("moe")
    forms = {"by tokens": BY_TOKENS, "together": TOGETHER, "bare": BARE}
    alone = [{"name": name, **form} for name, form in forms.items()]
    several = [{"name": name, **forms[form], **layout} for name, (form, layout) in LAYOUTS.items()]
    for name, other in AGAIN.items():
        load = str(out / f"2/{name}/step-00000003")
        several.append({"name": f"{name}-{other}", **TOGETHER, **LAYOUTS[other][1], "save_at": None, "load": load})
        several.append({"name": f"{name}-again", **TOGETHER, **LAYOUTS[name][1], "save_at": None, "load": load})
    start("layouts.py", out, {1: alone, 2: several})
    return out


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def weights(folder: Path) -> dict[str, Tensor]:
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    reader = CheckpointReader(checkpoint)
    return {name: reader.tensor("weight", name) for name in sorted(reader.shapes("weight"))}


@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_one_process(out: Path, name: str) -> None:
    expected, found = told(out / "1" / LAYOUTS[name][0]), told(out / "2" / name)
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.tensor(found["norms"]), torch.tensor(expected["norms"]), rtol=1e-4, atol=0)
    assert abs(found["valid"] - expected["valid"]) < 1e-5
    ours, others = weights(out / "1" / LAYOUTS[name][0]), weights(out / "2" / name)
    for key, weight in ours.items():
        torch.testing.assert_close(others[key], weight, rtol=0, atol=2e-5)
    assert ours["layers.0.mlp.up.weight"].shape == (4, 2, 64, 32)


@pytest.mark.parametrize("name", ["1/together", "2/pp2", "2/tp2"])
def test_the_log_has_the_losses_of_the_router(out: Path, name: str) -> None:
    for loss, metrics in zip(told(out / name)["losses"], told(out / name)["metrics"], strict=True):
        parts = [metrics[f"feed_forward_{each}"] for each in ("load_balance", "router_z")]
        assert 0.02 * 2 * 1.9 < parts[0] < 0.02 * 2 * 4  # two layers, two experts a token
        assert loss == pytest.approx(metrics["objective_loss"] + sum(parts), rel=1e-5)
        assert 1 <= metrics["feed_forward_busiest_expert"] < 2
        assert metrics["feed_forward_dropped_tokens"] == 0


@pytest.mark.parametrize("name", AGAIN)
def test_resumes_to_the_bit_and_in_another_layout(out: Path, name: str) -> None:
    expected = weights(out / "2" / name)
    again, other = weights(out / "2" / f"{name}-again"), weights(out / "2" / f"{name}-{AGAIN[name]}")
    for key, weight in expected.items():
        assert torch.equal(again[key], weight), key
        torch.testing.assert_close(other[key], weight, rtol=0, atol=2e-5)
