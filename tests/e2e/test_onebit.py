"""The 1-bit family behind the engine, on two real ranks: the engine averages exactly as long as they ask for it.

All cases of one number of ranks run in one group of processes (layouts.py).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks

STEPS, HALF, FREEZE = 10, 6, 4
GLOO = {"eps": 1e-5, "comm_backend_name": "gloo"}
CASES: dict[str, dict[str, Any]] = {
    "OneBitAdam": {"freeze_step": FREEZE},
    # It updates its variance at steps 1 to 3, and ranks meet at steps 4, 5, 7, 9 and 13: not at the half.
    "ZeroOneAdam": {"var_freeze_step": 3, "var_update_scaler": 3, "local_step_scaler": 2, "local_step_clipper": 8},
    "OneBitLamb": {"freeze_step": FREEZE, "coeff_beta": 0.5},
}
MODEL: dict[str, Any] = {"position": "rotary", "attention_bias": False, "hidden_dropout": 0.1, "lr": 1e-3}


def case(name: str, optimizer: str, **changes: Any) -> dict[str, Any]:
    settings = {**GLOO, **CASES[optimizer]} if optimizer in CASES else {"eps": 1e-5}
    return {**MODEL, "name": name, "optimizer": optimizer, "optimizer_settings": settings, "steps": STEPS, **changes}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Path:
    out = tmp_path_factory.mktemp("onebit")
    two = [case("AdamW", "AdamW", counted=True), case("AdamW-accumulated", "AdamW", accumulation=2)]
    two.append(case("OneBitAdam-accumulated", "OneBitAdam", accumulation=2))
    for name in CASES:
        for kind, more in (("", {}), ("-bf16", {"dtype": "bf16"})):
            two += [case(f"{name}{kind}", name, counted=True, **more)]
            two += [case(f"{name}{kind}-half", name, steps=HALF, **more)]
            two += [case(f"{name}{kind}-on", name, load=str(out / "2" / f"{name}{kind}-half"), **more)]
    one = [case(f"{name}-on", name, load=str(out / "2" / f"{name}-half")) for name in CASES]
    start("layouts.py", out, {2: two, 1: one})
    return out


def test_after_500_steps_the_loss_is_adams(tmp_path: Path, start: Any) -> None:
    start("onebit_loss.py", tmp_path, ["AdamW", "OneBitAdam"])
    adam, mine = (json.loads((tmp_path / "2" / f"{name}.json").read_text()) for name in ("AdamW", "OneBitAdam"))
    assert adam["end"] < 0.7 * adam["start"]
    assert mine["end"] == pytest.approx(adam["end"], rel=0.01)


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def stored(folder: Path) -> dict[tuple[Any, ...], Tensor]:
    """All tensors of the newest checkpoint, those of one rank alone included."""
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    reader = CheckpointReader(checkpoint)
    reader.verify()
    keys = {(each.kind, each.name, each.state) for each in reader.manifest.pieces if each.kind not in ("rng", "own")}
    found: dict[tuple[Any, ...], Tensor] = {key: reader.tensor(*key) for key in keys}
    for rank in range(reader.manifest.world_size):
        found |= {("own", rank, name): value for name, value in reader.of_rank("own", rank).items()}
    return found


@pytest.mark.parametrize("kind", ["", "-accumulated"])
def test_up_to_the_freeze_it_is_adam_to_the_bit(out: Path, kind: str) -> None:
    """The engine averages and clips; a loss is of the weights that the step before has left."""
    adam, mine = told(out / "2" / f"AdamW{kind}"), told(out / "2" / f"OneBitAdam{kind}")
    assert mine["losses"][: FREEZE + 1] == adam["losses"][: FREEZE + 1]
    assert mine["norms"][:FREEZE] == adam["norms"][:FREEZE]
    assert mine["losses"][FREEZE + 1] != adam["losses"][FREEZE + 1]
    assert mine["losses"] == pytest.approx(adam["losses"], rel=0.05)


def test_a_norm_of_own_gradients_is_not_below_that_of_the_average(out: Path) -> None:
    adam, mine = told(out / "2" / "AdamW")["norms"], told(out / "2" / "OneBitAdam")["norms"]
    assert mine[FREEZE] > adam[FREEZE]  # at equal weights


@pytest.mark.parametrize("kind", ["", "-bf16"])
@pytest.mark.parametrize("name", CASES)
def test_the_engine_averages_only_what_they_ask_for(out: Path, name: str, kind: str) -> None:
    sent = told(out / "2" / f"{name}{kind}")["sent"]
    exact = 3 if name == "ZeroOneAdam" else FREEZE
    whole = told(out / "2" / "AdamW")["sent"][0]["allreduce_"] // (2 if kind else 1)
    for step, collectives in enumerate(sent, start=1):
        if step <= exact:
            assert set(collectives) == {"allreduce_"}
            assert collectives["allreduce_"] == pytest.approx(whole, rel=0.001)
        elif name == "ZeroOneAdam" and step not in (4, 5, 7, 9):
            assert set(collectives) == {"allreduce_"}  # the norm, and whether gradients are finite
            assert collectives["allreduce_"] <= 8
        else:
            assert set(collectives) == {"allreduce_", "alltoall_base_", "allgather_"}
            assert collectives["allreduce_"] <= 8


@pytest.mark.parametrize("kind", ["", "-bf16"])
@pytest.mark.parametrize("name", CASES)
def test_resumed_goes_on_to_the_bit(out: Path, name: str, kind: str) -> None:
    straight, resumed = stored(out / "2" / f"{name}{kind}"), stored(out / "2" / f"{name}{kind}-on")
    assert set(straight) == set(resumed)
    assert {("own", rank, "worker_error") for rank in (0, 1)} < set(straight)
    assert [key for key, tensor in straight.items() if not torch.equal(tensor, resumed[key])] == []
    assert told(out / "2" / f"{name}{kind}-on")["losses"] == told(out / "2" / f"{name}{kind}")["losses"][HALF:]


@pytest.mark.parametrize("name", CASES)
def test_another_number_of_ranks_goes_on(out: Path, name: str) -> None:
    alone, two = told(out / "1" / f"{name}-on")["losses"], told(out / "2" / name)["losses"][HALF:]
    assert alone == pytest.approx(two, rel=0.05)
    assert not stored(out / "1" / f"{name}-on")["own", 0, "worker_error"].any()


def test_ranks_that_are_apart_store_their_weights(out: Path) -> None:
    half = stored(out / "2" / "ZeroOneAdam-half")
    assert not torch.equal(half["own", 0, "weights"], half["own", 1, "weights"])
    assert ("own", 0, "weights") not in stored(out / "2" / "OneBitAdam-half")
