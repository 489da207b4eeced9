"""Damaged and forged checkpoints: each is one clear error, and nothing of them is run."""

import hashlib
import json
import math
import os
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from checkpoint_runs import Damage, Run, edit, with_checkpoint
from torch import Tensor

from neox_core.checkpoint.checkpointer import find_checkpoint
from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import ComponentRef, RunPlan
from neox_core.plan.stored.saved import read_sealed

pytestmark = pytest.mark.usefixtures("process_group")


def _truncate(folder: Path) -> None:
    os.truncate(folder / "rank-00000.weights.safetensors", 200)


def _flip(folder: Path) -> None:
    file = folder / "rank-00000.optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _lose(folder: Path) -> None:
    (folder / "rank-00000.rng.safetensors").unlink()


def _weight(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(piece for piece in manifest["pieces"] if piece["kind"] == "weight")


def _swap_in_pickle(folder: Path) -> None:
    """A file that runs code when it is unpickled, with a manifest that vouches for it."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(folder / "pwned"),)

    data = pickle.dumps(Evil())
    (folder / "rank-00000.weights.safetensors").write_bytes(data)
    seal = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(lambda manifest: manifest["files"].update({"rank-00000.weights.safetensors": seal}))(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_truncate, r"weights.safetensors: has 200 bytes, \d+ were written"),
        (_flip, "optimizer.safetensors: wrong checksum"),
        (_lose, "rng.safetensors: No such file"),
        (_swap_in_pickle, "weights.safetensors: cannot read"),
        (lambda folder: (folder / "state.json").write_text("{}"), "state.json: has 2 bytes"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json: cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "not a JSON object"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json: cannot be read"),
        (edit(lambda m: m.update(format=7)), "format 7, this version reads formats 1 to 3"),
        (edit(lambda m: m.pop("pieces")), "not a manifest"),
        (edit(lambda m: m.update(extra=1)), "not a manifest"),
        (edit(lambda m: m["pieces"][0].update(file="../../etc/passwd")), "not a manifest"),
        (edit(lambda m: m["pieces"][0].update(file="rank-00009.weights.safetensors")), "names no checksum"),
        (edit(lambda m: _weight(m).update(shape=[-16, 8])), "not a manifest"),
        (edit(lambda m: _weight(m).update(shape=[10**9, 10**9])), "another model"),
        (edit(lambda m: _weight(m).update(shape=[1] * 100_000)), "not a manifest"),
        (edit(lambda m: _weight(m).update(dtype="OBJ")), "not a manifest"),
        (edit(lambda m: _weight(m).update(dtype="F16")), "is F32 .*, not F16"),
        (edit(lambda m: _weight(m).update(flat_range=[0, 5])), "do not fit together"),
        (edit(lambda m: _weight(m).update(flat_range=[5, 2])), "not a manifest"),
        (edit(lambda m: _weight(m).update(slice=[[0, 4], [0, 8]])), "do not fit together"),
        (edit(lambda m: _weight(m).update(slice=[[0, 99], [0, 8]])), "not a manifest"),
        (edit(lambda m: _weight(m).update(key="weight/other")), "cannot read weight/other"),
        (edit(lambda m: m["pieces"].remove(_weight(m))), "another model: no embed.weight"),
        (edit(lambda m: m["files"].pop("run.json")), "names no checksum for run.json"),
    ],
)
def test_damage_is_refused(plan: RunPlan, damage: Damage, says: str) -> None:
    folder = Run(plan).steps(1).save()
    damage(folder)
    with pytest.raises(CheckpointError, match=says):
        Run(with_checkpoint(plan, load=str(folder))).load()
    assert not (folder / "pwned").exists()


def _piece(manifest: dict[str, Any], **fields: Any) -> dict[str, Any]:
    pieces: list[dict[str, Any]] = manifest["pieces"]
    return next(piece for piece in pieces if fields.items() <= piece.items())


def _drop(manifest: dict[str, Any], **fields: Any) -> None:
    manifest["pieces"] = [piece for piece in manifest["pieces"] if not fields.items() <= piece.items()]


def _halve(manifest: dict[str, Any]) -> None:
    """Say that the weights are bf16, and that all but one have fp32 copies."""
    weights = [piece for piece in manifest["pieces"] if piece["kind"] == "weight"]
    manifest["pieces"] += [{**piece, "kind": "master"} for piece in weights if piece["name"] != "out.weight"]
    for piece in weights:
        piece["dtype"] = "BF16"


SQUARE = {"kind": "state", "name": "out.weight", "state": "exp_avg_sq"}


@pytest.mark.parametrize("by", ["one who makes checksums anew", "an earlier version"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: _piece(m, **SQUARE).update(name="ouz.weight"), "state of ouz.weight, which is not in this model"),
        (lambda m: _piece(m, **SQUARE).update(state="exp_avg_sz"), "no exp_avg_sq of out.weight"),
        (
            lambda m: _piece(m, **SQUARE).update(kind="master", state=None),
            "an fp32 copy of out.weight, which is fp32 itself",
        ),
        (lambda m: _drop(m, **SQUARE), "no exp_avg_sq of out.weight"),
        (lambda m: _drop(m, kind="state", state="exp_avg_sq"), "no exp_avg_sq of embed.weight; no exp_avg_sq of norm"),
        (lambda m: _drop(m, kind="state"), "no exp_avg of embed.weight|no step of embed.weight"),
        (lambda m: _drop(m, kind="state", name="norm.bias"), "of norm.bias"),
        (lambda m: _piece(m, **SQUARE).update(shape=[8, 16]), r"exp_avg_sq of out.weight is \[8, 16\], not \[16, 8\]"),
        (
            lambda m: m.update(values={"out.weight": {"exp_avg_sq": 1.0}}) or _drop(m, **SQUARE),
            "is a number, not a tensor",
        ),
        (lambda m: m.update(values={"gone.weight": {"step": 1}}), "state of gone.weight, which is not in this model"),
        (lambda m: _drop(m, kind="weight", name="out.weight"), "no out.weight"),
        (lambda m: _drop(m, kind="buffer"), "no seen"),
        (_halve, ": no fp32 copy of out.weight\n"),
        (lambda m: _drop(m, kind="rng"), "not a state of a random generator"),
        (lambda m: _drop(m, kind="rng", name="0/numpy"), "not a state of a random generator"),
    ],
)
def test_what_the_model_and_its_optimizer_need_has_to_be_there(
    plan: RunPlan, change: Callable[[dict[str, Any]], object], says: str, by: str
) -> None:
    """Also where every checksum holds, or where there is none of the manifest."""
    folder = Run(plan).steps(2).save()
    edit(change)(folder)
    if by == "an earlier version":
        manifest, _ = read_sealed(folder / "manifest.json")
        (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=says):
        Run(with_checkpoint(plan, load=str(folder))).load()


class Errors(torch.optim.SGD):
    """Each rank keeps the error of its compression, as the 1-bit optimizers of several ranks do."""

    def __init__(self, params: Any, settings: None, group: Any) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.error = torch.zeros(3)

    def needs_average(self) -> bool:
        return True

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.error += 1

    def own_state(self) -> dict[str, Tensor]:
        return {"error": self.error}

    def load_own_state(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        if any(stored):
            self.error.copy_(stored[0]["error"])


@pytest.mark.parametrize(
    "lost", ["nothing", "the pieces", "the names", "what the state says, as of an earlier version"]
)
def test_what_each_rank_keeps_for_itself_has_to_be_there(plan: RunPlan, lost: str) -> None:
    reference = ComponentRef("optimizer", "Errors", "neox-errors", "0.1.0", f"{__name__}:Errors")
    plan = evolve(plan, optim=evolve(plan.optim, optimizer=reference, weight_decay=0.0))
    folder = Run(plan).steps(2).save()
    run = Run(with_checkpoint(plan, load=str(folder)))
    if lost == "the pieces":
        edit(lambda manifest: _drop(manifest, kind="own"))(folder)
        with pytest.raises(CheckpointError, match="no error, which each rank kept for itself"):
            run.load()
        return
    if lost == "the names":
        edit(lambda stored: stored.update(own=[]), "state.json")(folder)
        with pytest.raises(CheckpointError, match="error, which no rank kept for itself"):
            run.load()
        return
    if lost != "nothing":
        edit(lambda stored: stored.pop("own"), "state.json")(folder)
    run.load()
    assert torch.equal(run.engine.optimizer.error, torch.full((3,), 2.0))  # type: ignore[attr-defined]  # Kept


def _state(**changes: Any) -> Damage:
    return edit(lambda stored: stored["state"].update(changes), "state.json")


def _top(**changes: Any) -> Damage:
    return edit(lambda stored: stored.update(changes), "state.json")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (edit(lambda stored: stored.clear(), "state.json"), "not the state of a run"),
        (edit(lambda stored: stored.pop("options"), "state.json"), "not the state of a run: required field missing"),
        (_state(step=1e30), "not the state of a run.*state.step"),
        (_state(step=10**30), "not the state of a run"),
        (_state(step=-1), "not the state of a run"),
        (_state(step=True), "not the state of a run"),
        (_state(step=10**7, consumed_samples=10**7), "is at step 2 by its manifest, at step 10000000 by state.json"),
        (_state(data_rounds=["a"]), "not the state of a run.*data_rounds"),
        (_state(data_rounds=[-5]), "not the state of a run: .data_rounds. must be >= 0"),
        (_state(data_contents={"train": [5]}), "not the state of a run"),
        (_state(data_hash="x"), "not the state of a run"),
        (_top(plugins={"a": 5}), "not the state of a run"),
        (_top(skipped_steps=-1), "not the state of a run"),
        (_top(schedule=[1]), "not the state of a run"),
        (_top(options=[5, 6]), "not the state of a run"),
        (_top(options=[{"betas": "ab"}, {}]), "group option 'betas' cannot be 'ab'"),
        (_top(options=[{"eps": "1"}, {}]), "group option 'eps' cannot be '1'"),
        (_top(options=[{"eps": math.nan}, {}]), "group option 'eps' cannot be 'nan'"),
        (_top(options=[{"eps": {"a": 1}}, {}]), "group option 'eps' cannot be"),
        (_top(options=[{"params": []}, {}]), "group option 'params' cannot be"),
        (_top(options=[{}]), "1 parameter groups are stored, the optimizer has 2"),
        (_top(schedule={"\x1b[31m": "\x1b" * 10_000}), "another learning-rate schedule"),
        (edit(lambda run: run.clear(), "run.json"), "run.json: names no optimizer"),
        (edit(lambda run: run.update(optim=[1]), "run.json"), "run.json: "),
        (edit(lambda run: run["optim"].update(optimizer="Adam"), "run.json"), "run.json: "),
        (_state(data_position=json.loads('{"a":' * 80 + "1" + "}" * 80)), "state.json: .* more than 64 levels"),
        (_top(neox_version="\ud800"), "state.json: .* half a surrogate pair"),
        (edit(lambda m: m.update(values=json.loads('{"a":' * 80 + "1" + "}" * 80))), "manifest.json: .* 64 levels"),
        (edit(lambda m: m.update(values={"\udfff": {}})), "manifest.json: .* half a surrogate pair"),
        (edit(lambda m: m.update(step=10**30)), "is at step 1000000"),
        (edit(lambda m: m.update(world_size=10**12)), "not a manifest"),
    ],
)
def test_a_state_that_anybody_may_have_written_is_one_clear_error(plan: RunPlan, damage: Damage, says: str) -> None:
    folder = Run(plan).steps(2).save()
    damage(folder)
    with pytest.raises(CheckpointError, match=says) as caught:
        Run(with_checkpoint(plan, load=str(folder))).load()
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1500


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, "1", None])
def test_a_loss_scale_that_none_can_be_is_refused(plan: RunPlan, scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, scaler = Run(plan), SimpleNamespace(cur_scale=2.0**16)
    monkeypatch.setattr(type(run.engine), "loss_scaler", lambda self: scaler)
    folder = run.steps(1).save()
    edit(lambda stored: stored["loss_scaler"].update(cur_scale=scale), "state.json")(folder)
    with pytest.raises(CheckpointError, match=f"the loss scaler's cur_scale cannot be '{scale}'"):
        Run(with_checkpoint(plan, load=str(folder))).load()
    edit(lambda stored: stored["loss_scaler"].update(cur_scale=4), "state.json")(folder)
    Run(with_checkpoint(plan, load=str(folder))).load()
    assert scaler.cur_scale == 4


def test_every_change_of_a_single_byte_is_noticed(plan: RunPlan) -> None:
    folder = Run(plan).steps(2).save()
    save, draw = folder.parent, random.Random(7)
    files = sorted(path for path in save.rglob("*") if path.is_file())
    assert len(files) == 7
    places = [(file, draw.randrange(file.stat().st_size), draw.randrange(1, 256)) for file in files for _ in range(30)]
    places += [(folder / "manifest.json", draw.randrange(90), 1 << draw.randrange(8)) for _ in range(190)]
    missed = []
    for file, place, change in places:
        whole = file.read_bytes()
        file.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
        for start in (save, folder) if file.name == "manifest.json" else (save,):  # by `latest`, and by name
            try:
                found = find_checkpoint(start)
                assert found is not None
                CheckpointReader(found).verify()
                missed.append((start.name, file.name, place, change))
            except CheckpointError:
                pass
        file.write_bytes(whole)
    assert len(places) == 400
    assert missed == []
    CheckpointReader(folder).verify()


@pytest.mark.parametrize("load", ["folder", "latest"])
def test_a_checkpoint_without_a_checksum_of_its_manifest_is_read_with_a_note(plan: RunPlan, load: str) -> None:
    folder = Run(plan).steps(1).save()
    manifest, _ = read_sealed(folder / "manifest.json")
    (folder / "manifest.json").write_text(json.dumps(manifest) + "\n")
    (folder.parent / "latest").write_text(f"{folder.name}\n")
    notes = Run(with_checkpoint(plan, load=str(folder if load == "folder" else folder.parent))).load().notes
    assert any("without a checksum of its manifest" in note for note in notes)


def test_latest_is_a_name_of_ours(plan: RunPlan, tmp_path: Path) -> None:
    folder = Run(plan).steps(1).save()
    for name in ("../save/step-00000001", "/etc", "step-1/../..", ""):
        (folder.parent / "latest").write_text(name)
        with pytest.raises(CheckpointError, match="is not the name of a checkpoint") as caught:
            find_checkpoint(folder.parent)
        assert "delete latest" in caught.value.hint
    (folder.parent / "latest").write_text("step-00000099")  # gone: the newest that is whole
    (folder.parent / "step-00000002").mkdir()
    assert find_checkpoint(folder.parent) == folder
    (folder.parent / "latest").unlink()  # the first save, killed before it wrote this
    assert find_checkpoint(folder.parent) == folder
    assert find_checkpoint(folder) == folder
    (folder.parent / "latest").mkdir()
    with pytest.raises(CheckpointError, match="is not a file"):
        find_checkpoint(folder.parent)
