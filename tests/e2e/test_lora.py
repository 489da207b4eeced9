"""Low-rank adapters in every layout of ranks, over a base that another run has trained: as in one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

BASE: dict[str, Any] = {"position": "rotary", "activation": "swiglu", "num_layers": 3}
# Several targets, dropout on what is whole and on what ranks have a part of, and two places where nothing is changed.
LORA: dict[str, Any] = {
    **BASE,
    "lora": {"rank": 3, "alpha": 12, "dropout": 0.2, "target_modules": ["mlp.*", "attention.qkv", "layers.2.*.output"]},
    "lr": 0.02,
    "accumulation": 2,
}
HALFWAY, STEPS = 3, 6
PARTED = {"layers": 1, "deepspeed": True, "partition": True, "contiguous": True, "num_checkpoints": 3}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor": 2},
    "tp2sp": {"tensor": 2, "sequence_parallel": True},
    "tp2parted": {"tensor": 2, "recompute": PARTED},
    "tp2kept": {"tensor": 2, "recompute": {"layers": 1, "distribute": True}},
    "dp2": {},
    "dp2z1": {"zero": 1},
    "dp2z2": {"zero": 2},
    "pp2": {"pipe": 2},
    "pp2z1": {"pipe": 2, "zero": 1, "recompute": {"layers": 1, "deepspeed": True}},
    "plain-tp2": {"engine": "plain", "tensor": 2, "recompute": {"layers": 2}},
    "plain-dp2": {"engine": "plain"},
}
ALONE = {"plain": {"engine": "plain"}, "recompute": {"recompute": {"layers": 2}}}
SWAPS = {"tp2": "pp2", "pp2": "dp2z2", "dp2z2": "tp2"}
HALF = {"dtype": "bf16"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    out = tmp_path_factory.mktemp("lora")
    tune = {**LORA, "load": str(out / "1/base"), "finetune": True, "steps": STEPS}
    alone = [
        {"name": "base", **BASE, "steps": 2, "lr": 0.02, "accumulation": 2},
        {"name": "alone", **tune},
        *({"name": name, **tune, **changes} for name, changes in ALONE.items()),
        {"name": "half", **tune, **HALF, "save_at": HALFWAY},
        {"name": "half-again", **LORA, **HALF, "load": str(out / "1/half/step-00000003"), "steps": STEPS},
    ]
    several = [{"name": name, **tune, **changes, "save_at": HALFWAY} for name, changes in LAYOUTS.items()]
    several += [{"name": f"half-{name}", **tune, **HALF, **LAYOUTS[name]} for name in ("tp2", "dp2z1", "pp2")]
    for name in ("tp2", "dp2z2", "pp2", "plain-dp2"):
        load = str(out / f"2/{name}/step-{HALFWAY:08d}")
        several.append({"name": f"{name}-again", **LORA, **LAYOUTS[name], "load": load, "steps": STEPS})
    for name, other in SWAPS.items():
        load = str(out / f"2/{name}/step-{HALFWAY:08d}")
        several.append({"name": f"{name}-{other}", **LORA, **LAYOUTS[other], "load": load, "steps": STEPS})
    start("layouts.py", out, {1: alone, 2: several})
    return out


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def stored(folder: Path) -> dict[tuple[str, str, str | None], Tensor]:
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    reader = CheckpointReader(checkpoint)
    keys = {(piece.kind, piece.name, piece.state) for piece in reader.manifest.pieces if piece.kind != "rng"}
    return {key: reader.tensor(*key) for key in sorted(keys, key=str)}


@pytest.mark.parametrize("name", [f"2/{each}" for each in LAYOUTS] + [f"1/{each}" for each in ALONE])
def test_equals_one_process(out: Path, name: str) -> None:
    expected, found = told(out / "1/alone"), told(out / name)
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.tensor(found["norms"]), torch.tensor(expected["norms"]), rtol=1e-3, atol=0)
    assert abs(found["valid"] - expected["valid"]) < 1e-5
    weights, others = stored(out / "1/alone"), stored(out / name)
    for kind, key, state in weights:
        if kind == "weight":
            torch.testing.assert_close(others[kind, key, state], weights[kind, key, state], rtol=0, atol=2e-5)
    assert {each for each in weights if each[0] == "state"} == {each for each in others if each[0] == "state"}


@pytest.mark.parametrize("name", ["1/alone", "2/tp2", "2/pp2", "2/dp2z2", "2/plain-dp2"])
def test_only_adapters_are_trained_and_have_optimizer_state(out: Path, name: str) -> None:
    base, tuned = stored(out / "1/base"), stored(out / name)
    weights = {key: value for (kind, key, _), value in tuned.items() if kind == "weight"}
    assert {key for key in weights if "changes" not in key} == {key for kind, key, _ in base if kind == "weight"}
    for key, value in weights.items():
        if "changes" not in key:
            assert torch.equal(value, base["weight", key, None]), key
        elif key.endswith("up"):
            assert value.abs().max() > 1e-3, key
    adapters = {key for key in weights if ".changes.lora." in key}
    assert len(adapters) == 2 * (3 * 3 + 1)
    assert {key for kind, key, _ in tuned if kind == "state"} == adapters


@pytest.mark.parametrize("name", ["2/tp2", "2/dp2z2", "2/pp2", "2/plain-dp2", "1/half"])
def test_resumes_to_the_bit(out: Path, name: str) -> None:
    expected, found = stored(out / name), stored(out / f"{name}-again")
    assert set(found) == set(expected)
    assert [key for key, tensor in expected.items() if not torch.equal(found[key], tensor)] == []


@pytest.mark.parametrize(("name", "other"), SWAPS.items())
def test_goes_on_in_another_layout(out: Path, name: str, other: str) -> None:
    expected, found = stored(out / "1/alone"), stored(out / f"2/{name}-{other}")
    for kind, key, state in expected:
        if kind == "weight":
            torch.testing.assert_close(found[kind, key, state], expected[kind, key, state], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["tp2", "dp2z1", "pp2"])
def test_is_near_one_process_in_bf16(out: Path, name: str) -> None:
    expected, found = told(out / "1/half"), told(out / f"2/half-{name}")
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=0, atol=4e-3)
    masters = {key for kind, key, _ in stored(out / f"2/half-{name}") if kind == "master"}
    assert masters
    assert all(".changes.lora." in key for key in masters)
