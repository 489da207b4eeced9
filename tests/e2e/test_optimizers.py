"""Each optimizer over ranks: two equal one with the doubled batch, sharded equal whole, resumed equal uninterrupted.

All cases of one number of ranks run in one group of processes (layouts.py).
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.hooks.loader import load_plugins
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

STEPS, HALF = 6, 3
CLIPPING = 0.5
# A key's bias has no gradient but rounding, which adaptive steps would divide by itself: the model has no such biases.
MODEL: dict[str, Any] = {"position": "rotary", "attention_bias": False, "steps": STEPS}
EPS = {"optimizer_settings": {"eps": 1e-5}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {"optimizer_settings": {"eps": 1e-5, "adam_w_mode": False}},
    "SM3": {"lr": 1e-2, "optimizer_settings": {"momentum": 0.5, "eps": 1e-8}},
    "Lion": {"lr": 1e-4},
    "Adadelta": {"lr": 0.3, **EPS},
    "SGD": {"lr": 0.1, "optimizer_settings": {"momentum": 0.9, "nesterov": True}},
    **dict.fromkeys(("AdamW", "CPU_Adam", "CPU_torch_adam", "Lamb", "Muon"), EPS),
    **dict.fromkeys(("Adagrad", "RMSprop", "Adamax", "NAdam", "RAdam"), EPS),
}
OFFERED = {name: load_plugins().find("optimizer", name).component for name in OPTIMIZERS}
SHARDED = [(name, stage) for name, offered in OFFERED.items() for stage in offered.zero_stages if stage]
WHOLE = [name for name, offered in OFFERED.items() if offered.whole_parameters]
# Optimizers that look at shapes, over fp32 copies of a model in bfloat16.
MASTERS = ("SM3", "Muon")
# Its iterations are in bfloat16, where a gradient's last bit may be one in a hundred of a small element's step.
TOLERANCES = {"Muon": 1e-3}


def case(name: str, optimizer: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "optimizer": optimizer, "lr": 1e-3, **MODEL, **OPTIMIZERS[optimizer], **changes}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    out = tmp_path_factory.mktemp("optimizers")

    def half_of(name: str) -> str:
        return str(out / "2" / name / f"step-{HALF:08d}")

    two = []
    for name in OPTIMIZERS:
        two.append(case(f"{name}-0", name, save_at=HALF))
        two.append(case(f"{name}-on", name, load=half_of(f"{name}-0")))
    two += [case(f"{name}-{stage}", name, zero=stage, save_at=HALF) for name, stage in SHARDED]
    for name, stage in product(MASTERS, (0, 1)):
        two.append(case(f"{name}-bf16-{stage}", name, dtype="bf16", zero=stage, save_at=HALF))
        two.append(
            case(f"{name}-bf16-{stage}-on", name, dtype="bf16", zero=stage, load=half_of(f"{name}-bf16-{stage}"))
        )
    for there, here in ((0, 1), (1, 0)):
        two.append(case(f"Muon-{here}-from-{there}", "Muon", zero=here, load=half_of(f"Muon-{there}")))
    two += [case(f"{name}-pipeline", name, pipe=2, accumulation=2) for name in WHOLE]
    two.append(case("SM3-slices", "SM3", zero=2))
    one = [case(name, name) for name in OPTIMIZERS] + [case("Muon-fewer", "Muon", load=half_of("Muon-1"))]
    stages = {"pipe": 2, "zero": 1, "accumulation": 2}
    four = [case("SM3-stages", "SM3", **stages), case("SM3-bf16-stages", "SM3", dtype="bf16", **stages)]
    start("layouts.py", out, {2: two, 1: one, 4: four})
    return out


def stored(folder: Path) -> dict[tuple[str, str, str | None], Tensor]:
    """All tensors of the newest checkpoint: weights and the optimizer's state."""
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    reader = CheckpointReader(checkpoint)
    reader.verify()
    keys = {(piece.kind, piece.name, piece.state) for piece in reader.manifest.pieces if piece.kind != "rng"}
    return {key: reader.tensor(*key) for key in sorted(keys, key=str)}


def furthest(some: dict[Any, Tensor], others: dict[Any, Tensor], kind: str) -> tuple[float, Any]:
    """The largest difference of an element, and where it is."""
    mine, theirs = ({key for key in each if key[0] == kind} for each in (some, others))
    assert mine == theirs
    return max((float((some[key].double() - others[key].double()).abs().max()), key) for key in mine)


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def assert_same(some: dict[Any, Tensor], others: dict[Any, Tensor]) -> None:
    assert set(some) == set(others)
    assert {key[0] for key in some} >= {"weight", "state"}
    assert [key for key, tensor in some.items() if not torch.equal(tensor, others[key])] == []


@pytest.mark.parametrize(
    ("name", "layout"), [*((name, "0") for name in OPTIMIZERS), *((name, "pipeline") for name in WHOLE)]
)
def test_two_ranks_equal_one_with_the_doubled_batch(out: Path, name: str, layout: str) -> None:
    far, key = furthest(stored(out / "2" / f"{name}-{layout}"), stored(out / "1" / name), "weight")
    assert far < TOLERANCES.get(name, 1e-5), key


@pytest.mark.parametrize(("name", "stage"), SHARDED)
def test_sharded_equals_whole(out: Path, name: str, stage: int) -> None:
    far, key = furthest(stored(out / "2" / f"{name}-{stage}"), stored(out / "2" / f"{name}-0"), "weight")
    assert far < 1e-6, key


@pytest.mark.parametrize(
    ("straight", "resumed"),
    [
        *((f"{name}-0", f"{name}-on") for name in OPTIMIZERS),
        *((f"{name}-bf16-{stage}", f"{name}-bf16-{stage}-on") for name in MASTERS for stage in (0, 1)),
    ],
)
def test_resumed_goes_on_to_the_bit(out: Path, straight: str, resumed: str) -> None:
    assert_same(stored(out / "2" / straight), stored(out / "2" / resumed))


@pytest.mark.parametrize("name", WHOLE)
def test_ranks_that_own_whole_parameters_step_as_those_that_have_all(out: Path, name: str) -> None:
    assert_same(stored(out / "2" / f"{name}-0"), stored(out / "2" / f"{name}-1"))
    norms, others = (told(out / "2" / f"{name}-{stage}")["norms"] for stage in (0, 1))
    assert norms == others
    assert max(norms) > CLIPPING


@pytest.mark.parametrize("name", MASTERS)
def test_ranks_that_own_copies_step_as_those_that_have_all(out: Path, name: str) -> None:
    """DeepSpeed rounds the norm another way, by which a weight is sometimes rounded to another bf16 number."""
    tensors = stored(out / "2" / f"{name}-bf16-1")
    far, key = furthest(stored(out / "2" / f"{name}-bf16-0"), tensors, "master")
    assert far < 5e-3, key
    rounded = {name: tensor.bfloat16() for (kind, name, _), tensor in tensors.items() if kind == "master"}
    assert all(torch.equal(tensors["weight", name, None], copy) for name, copy in rounded.items())


@pytest.mark.parametrize("name", [*WHOLE, *(f"{name}-bf16" for name in MASTERS)])
def test_ranks_that_own_whole_parameters_share_the_state(out: Path, name: str) -> None:
    all_of_it, other = told(out / "2" / f"{name}-0")["held"]
    assert all_of_it == other
    shares = told(out / "2" / f"{name}-1")["held"]
    assert sum(shares) == all_of_it
    assert max(shares) < 0.55 * all_of_it


@pytest.mark.parametrize(("resumed", "straight"), [("Muon-1-from-0", "Muon-1"), ("Muon-0-from-1", "Muon-0")])
def test_another_stage_goes_on_to_the_bit(out: Path, resumed: str, straight: str) -> None:
    assert_same(stored(out / "2" / straight), stored(out / "2" / resumed))


def test_other_numbers_of_ranks_go_on(out: Path) -> None:
    """One rank from the checkpoint of two owners; and two owners for each of two stages of a pipeline."""
    for other, name in ((out / "1" / "Muon-fewer", "Muon"), (out / "4" / "SM3-stages", "SM3")):
        far, key = furthest(stored(other), stored(out / "1" / name), "weight")
        assert far < TOLERANCES.get(name, 1e-5), key
    losses, others = (told(out / each)["losses"] for each in ("4/SM3-bf16-stages", "2/SM3-bf16-1"))
    assert losses == pytest.approx(others, rel=2e-3)


def test_a_checkpoint_of_sm3_has_a_number_for_each_row_and_column(out: Path) -> None:
    tensors = stored(out / "2" / "SM3-0")
    matrices = [name for (kind, name, _), tensor in tensors.items() if kind == "weight" and tensor.ndim == 2]
    assert matrices
    for name in matrices:
        rows, columns = tensors["weight", name, None].shape
        assert tensors["state", name, "bound_0"].shape == (rows, 1)
        assert tensors["state", name, "bound_1"].shape == (1, columns)


@pytest.mark.parametrize("name", MASTERS)
def test_masters_have_the_state_of_parameters(out: Path, name: str) -> None:
    """The copies that are stepped in place of parameters have their shapes, and are told apart as they are."""
    plain, copied = stored(out / "2" / f"{name}-0"), stored(out / "2" / f"{name}-bf16-0")
    states = {key: tensor.shape for key, tensor in plain.items() if key[0] == "state"}
    assert states == {key: tensor.shape for key, tensor in copied.items() if key[0] == "state"}
    assert {tensor.dtype for key, tensor in copied.items() if key[0] in ("state", "master")} == {torch.float32}
    if name == "Muon":
        tables = {key[1] for key in states if key[2] == "exp_avg" and len(states[key]) == 2}
        assert tables == {"embedding.weight"}


def test_sm3_on_slices_has_a_number_for_each_element(out: Path) -> None:
    """At ZeRO 2, where a config must allow it; there are no rows and columns in a slice."""
    tensors = stored(out / "2" / "SM3-slices")
    for (kind, name, state), tensor in tensors.items():
        if kind == "state" and state == "bound_0":
            assert tensor.shape == tensors["weight", name, None].shape
