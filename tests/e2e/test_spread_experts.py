"""Experts that are spread over data-parallel ranks: losses, norms, weights and checkpoints are those of whole ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import NeoxError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks


def experts(ranks: int = 1, **more: Any) -> dict[str, Any]:
    """Experts in the first layer and the last."""
    settings = {"moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_z_loss_coeff": 0.01}
    settings |= {"moe_loss_coeff": 0.0, "moe_expert_parallel_size": ranks, **more}
    return {
        "engine": "plain",
        "num_layers": 3,
        "activation": "swiglu",
        "feed_forwards": [("neox_moe.layer:mixture", "neox_moe.settings:MoESettings", settings), "neox_gpt.mlp:MLP"],
        "feed_forward_of_layer": [0, 1, 0],
        "steps": 6,
    }


# What an expert drops and how even a batch is depend on the tokens of a rank, which the layouts of 2 ranks share.
DROPS = {"moe_loss_coeff": 0.02, "moe_train_capacity_factor": 0.8}
CASES: dict[int, dict[str, dict[str, Any]]] = {
    1: {"whole": experts()},
    2: {
        "whole, drops": experts(**DROPS),
        "spread, drops": experts(2, **DROPS),
        "spread": {**experts(2), "save_at": 3},
        "recomputed": {**experts(2), "recompute": {"layers": 1}, "accumulation": 2},
        "compiled": {**experts(2), "compiled": True},
    },
    4: {"spread": experts(4), "copies": {**experts(2), "save_at": 3}},
}
EQUAL = {
    "2/spread": "1/whole",
    "2/recomputed": "1/whole",
    "2/compiled": "1/whole",
    "4/spread": "1/whole",
    "4/copies": "1/whole",
    "2/spread, drops": "2/whole, drops",
}
RESUMED = {
    "1/of 2": "2/spread",
    "1/of 4": "4/copies",
    "2/again": "2/spread",
    "4/of 2": "2/spread",
    "2/of 4": "4/copies",
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    out = tmp_path_factory.mktemp("moe")
    first = {ranks: [{"name": name, **case} for name, case in cases.items()] for ranks, cases in CASES.items()}
    start("layouts.py", out, first)
    later: dict[str, list[dict[str, Any]]] = {}
    for name, written in RESUMED.items():
        ranks, _, own = name.partition("/")
        case = {"name": own, **experts(min(2, int(ranks))), "load": str(out / written / "step-00000003")}
        later.setdefault(ranks, []).append(case)
    (out / "later").mkdir()
    start("layouts.py", out / "later", later)
    return out


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def stored(folder: Path, kind: str = "weight", state: str | None = None) -> dict[str, Tensor]:
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    reader = CheckpointReader(checkpoint)
    return {name: reader.tensor(kind, name, state) for name in sorted(reader.shapes("weight"))}


@pytest.mark.parametrize("name", EQUAL)
def test_equals_whole_experts(out: Path, name: str) -> None:
    expected, found = told(out / EQUAL[name]), told(out / name)
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.tensor(found["norms"]), torch.tensor(expected["norms"]), rtol=1e-4, atol=0)
    assert abs(found["valid"] - expected["valid"]) < 1e-5
    whole, spread = stored(out / EQUAL[name]), stored(out / name)
    for key, weight in whole.items():
        torch.testing.assert_close(spread[key], weight, rtol=0, atol=2e-5)
    assert whole["layers.0.mlp.up.weight"].shape == (4, 2, 64, 32)
    if "drops" in name:
        assert found["metrics"][0]["feed_forward_dropped_tokens"] > 0


@pytest.mark.parametrize("name", ["2/spread", "4/copies", "4/spread"])
def test_each_rank_has_its_experts_and_a_checkpoint_has_each_once(out: Path, name: str) -> None:
    ranks, spread = int(name[0]), 2 if "copies" in name else int(name[0])
    checkpoint = find_checkpoint(out / name)
    assert checkpoint is not None
    pieces = [each for each in CheckpointReader(checkpoint).manifest.pieces if each.name == "layers.2.mlp.down.weight"]
    for kind, state in (("weight", None), ("state", "exp_avg")):
        mine = [each for each in pieces if (each.kind, each.state) == (kind, state)]
        assert [each.slice[0] for each in sorted(mine, key=lambda each: each.slice or ())] == [  # type: ignore[index]  # of experts
            (4 // spread * rank, 4 // spread * (rank + 1)) for rank in range(spread)
        ]
        assert len({each.file for each in mine}) == spread
    # Adam has two numbers for each of 4 experts' 6,144 in two layers, next to what all ranks have
    (alone,), held = told(out / "1/whole")["held"], told(out / name)["held"]
    assert held == [alone - 2 * (4 - 4 // spread) * 2 * (2 * 64 * 32 + 32 * 64)] * ranks


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_resumes_on_other_numbers_of_ranks(out: Path, name: str) -> None:
    written = RESUMED[name]
    expected, found = stored(out / written), stored(out / "later" / name)
    for key, weight in expected.items():
        if name == "2/again":
            assert torch.equal(found[key], weight), key
        torch.testing.assert_close(found[key], weight, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("engine", "deepspeed", "engine: moe is spread over 2 data-parallel ranks, and deepspeed takes each"),
        ("optimizer", "{type: Muon, params: {lr: 1e-2}}", "optimizer.type: Muon needs whole parameters, and moe is"),
        ("optimizer", "{type: OneBitAdam}", "optimizer.type: OneBitAdam needs whole parameters, and moe is"),
    ],
)
def test_what_needs_whole_parameters_is_refused(key: str, value: str, said: str) -> None:
    example = Path(__file__).parents[2] / "plugins/neox-moe/example.yml"
    spread = {"engine": "plain", "num-gpus": "2", "device": "cpu", "moe-expert-parallel-size": "2", key: value}
    with pytest.raises(NeoxError) as caught:
        prepare_run([example], [f"{name}={each}" for name, each in spread.items()], catalog=load_plugins())
    assert f"error: {said}" in str(caught.value)
