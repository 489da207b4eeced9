"""Compression in every layout of ranks: as in one process, and resumed to the bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

HALFWAY, STEPS = 3, 6


def technique(shared: dict[str, Any], **groups: Any) -> dict[str, Any]:
    return {"shared_parameters": {"enabled": True, **shared}, "different_groups": groups}


BITS = {"start_bits": 8, "target_bits": 6, "quantization_period": 2}
ROUNDED = {
    "weight_quantization": technique(
        {"quantize_weight_in_forward": True, "schedule_offset": 1, "quantize_groups": 4}, all={"params": BITS}
    ),
    "activation_quantization": technique(
        {"range_calibration": "static", "schedule_offset": 2, "quantization_type": "asymmetric"},
        mlp={"modules": ["mlp"]},
    ),
}
BY_STEP = {
    "weight_quantization": technique(
        {"rounding": "stochastic", "fp16_mixed_quantize": {"enabled": True, "quantize_change_ratio": 0.25}},
        mlp={"params": BITS, "modules": [r"mlp\.\w+"]},
    )
}
PRUNED = {
    "sparse_pruning": technique(
        {"schedule_offset": 1, "method": "l1"}, all={"params": {"dense_ratio": 0.6}, "modules": ["qkv", "mlp.down"]}
    ),
    "row_pruning": technique({"method": "topk", "schedule_offset": 1}, up={"modules": ["mlp.up"]}),
    "head_pruning": technique({"num_heads": 4, "schedule_offset": 2}, heads={"modules": ["attention.output"]}),
}
BLOCKS = {
    "sparse_pruning": technique(
        {
            "method": "snip_momentum",
            "schedule_offset": 1,
            "schedule_offset_end": 4,
            "dense_ratio": 0.4,
            "excluded_modules": ["mlp.down"],
        }
    ),
    "row_pruning": technique({"schedule_offset": 1}, up={"modules": ["mlp.up"], "related_modules": [["mlp.down"]]}),
}
MODEL: dict[str, Any] = {"position": "rotary", "activation": "swiglu", "num_layers": 2, "accumulation": 2}
CASES: dict[str, dict[str, Any]] = {
    "rounded": {**MODEL, "compression": ROUNDED},
    "pruned": {**MODEL, "compression": PRUNED},
    "blocks": {**MODEL, "compression": BLOCKS},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor": 2, "recompute": {"layers": 1}},
    "tp2sp": {"tensor": 2, "sequence_parallel": True},
    "dp2": {},
    "dp2z1": {"zero": 1, "recompute": {"layers": 1}},
    "dp2z2": {"zero": 2},
    "pp2": {"pipe": 2, "zero": 1, "recompute": {"layers": 1, "deepspeed": True}},
    "plain-dp2": {"engine": "plain", "accumulation": 1},
}
HALF = {**MODEL, "compression": BY_STEP, "dtype": "bf16"}


def layouts_of(case: str) -> dict[str, dict[str, Any]]:
    """snip_momentum compares all layers, and a stage of a pipeline has some."""
    return {name: each for name, each in LAYOUTS.items() if case != "blocks" or name != "pp2"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    out = tmp_path_factory.mktemp("compression")
    alone: list[dict[str, Any]] = [{"name": "none", **MODEL, "steps": STEPS}]
    several: list[dict[str, Any]] = []
    for case, told in CASES.items():
        alone.append({"name": case, **told, "steps": STEPS})
        for layout, changes in layouts_of(case).items():
            name = f"{case}-{layout}"
            several.append({"name": name, **told, **changes, "steps": STEPS, "save_at": HALFWAY})
            load = str(out / f"2/{name}/step-{HALFWAY:08d}")
            if layout in ("tp2", "dp2z2", "pp2", "plain-dp2"):
                several.append({"name": f"{name}-again", **told, **changes, "load": load, "steps": STEPS})
            if layout == "tp2":
                several.append({"name": f"{name}-dp2z2", **told, **LAYOUTS["dp2z2"], "load": load, "steps": STEPS})
    for layout in ("tp2", "dp2z1"):
        several.append({"name": f"half-{layout}", **HALF, **LAYOUTS[layout], "steps": STEPS, "save_at": HALFWAY})
        load = str(out / f"2/half-{layout}/step-{HALFWAY:08d}")
        several.append({"name": f"half-{layout}-again", **HALF, **LAYOUTS[layout], "load": load, "steps": STEPS})
    start("layouts.py", out, {1: [*alone, {"name": "half", **HALF, "steps": STEPS}], 2: several})
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


@pytest.mark.parametrize(
    ("case", "layout"), [(case, each) for case in CASES for each in (*layouts_of(case), "tp2-dp2z2")]
)
def test_equals_one_process(out: Path, case: str, layout: str) -> None:
    """Rounding makes a step of what differs in the last bit, hence 1e-4 in place of 1e-5."""
    expected, found = told(out / f"1/{case}"), told(out / f"2/{case}-{layout}")
    losses = torch.tensor(expected["losses"][-len(found["losses"]) :])
    torch.testing.assert_close(torch.tensor(found["losses"]), losses, rtol=0, atol=1e-4)
    assert abs(found["valid"] - expected["valid"]) < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_acts_from_its_step_on(out: Path, case: str) -> None:
    expected, found = told(out / "1/none")["losses"], told(out / f"1/{case}")["losses"]
    assert found[:1] == expected[:1]
    assert all(abs(mine - other) > 1e-6 for mine, other in zip(found[1:], expected[1:], strict=True))


@pytest.mark.parametrize(
    "name",
    [f"{case}-{each}" for case in CASES for each in ("tp2", "dp2z2", "pp2", "plain-dp2") if each in layouts_of(case)]
    + ["half-tp2", "half-dp2z1"],
)
def test_resumes_to_the_bit(out: Path, name: str) -> None:
    expected, found = stored(out / f"2/{name}"), stored(out / f"2/{name}-again")
    assert set(found) == set(expected)
    assert [key for key, tensor in expected.items() if not torch.equal(found[key], tensor)] == []


def test_masks_of_blocks_are_those_of_all_samples(out: Path) -> None:
    """Blocks of a rank's gradients alone would be others; a rounding of sums may move one block at the limit."""
    expected = stored(out / "1/blocks")
    masks = [key for key in expected if key[1].endswith(".snip_mask")]
    assert len(masks) == 6
    number = sum(expected[key].numel() for key in masks)
    assert abs(sum(float(expected[key].sum()) for key in masks) / number - 0.4) < 4 / number
    for layout in layouts_of("blocks"):
        found = stored(out / f"2/blocks-{layout}")
        assert sum(int((found[key] != expected[key]).sum()) for key in masks) <= 8


def test_a_range_is_that_of_all_samples(out: Path) -> None:
    """The running range is state of the checkpoint, not trained, and the same in all layouts."""
    expected = stored(out / "1/rounded")
    ranges = [key for key in expected if key[1].endswith(".changes.compression.range")]
    assert len(ranges) == 4
    assert not [key for key in expected if key[0] != "weight" and "compression" in key[1]]
    for layout in LAYOUTS:
        found = stored(out / f"2/rounded-{layout}")
        for key in ranges:
            assert expected[key][0] < 0 < expected[key][1]
            torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", ["tp2", "dp2z1"])
def test_is_near_one_process_in_bf16(out: Path, layout: str) -> None:
    expected, found = told(out / "1/half"), told(out / f"2/half-{layout}")
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=0, atol=6e-3)
