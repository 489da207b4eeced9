"""A checkpoint of many pieces: the manifest lists tensors, and their pieces are in parts, read when they are needed."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from checkpoint_runs import Run, edit, resuming, with_checkpoint
from test_stores import (
    again,
    broken,
    place,
    stored,
    test_a_save_that_is_killed_before_any_call_leaves_the_last_checkpoint,
)

from neox_core.checkpoint import read
from neox_core.checkpoint.checkpointer import read_weights
from neox_core.checkpoint.manifest import Piece
from neox_core.checkpoint.publish import publish, write_manifest
from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.write import RankContents, write_rank
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import RunPlan
from neox_core.plan.stored.saved import find_checkpoint, read_sealed, read_stored

__all__ = ["broken", "place", "test_a_save_that_is_killed_before_any_call_leaves_the_last_checkpoint"]

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_core.checkpoint.manifest.MOST_PIECES", 0)
    monkeypatch.setattr("neox_core.checkpoint.publish.PART", 3)


def parts_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("pieces-*.json"))


def test_a_resumed_run_is_that_which_was_not_stopped(plan: RunPlan) -> None:
    whole = Run(plan).steps(4)
    folder = Run(plan).steps(2).save()
    assert len(parts_of(folder)) > 4
    assert "pieces-rng-00000.json" in parts_of(folder)
    run = Run(resuming(plan))
    run.load()
    run.steps(2)
    assert run.losses == whole.losses[2:]
    assert all(torch.equal(weight, run.weights()[name]) for name, weight in whole.weights().items())


def test_a_resumed_run_from_a_store_too(plan: RunPlan, tmp_path: Path) -> None:
    whole, place = Run(plan).steps(3), tmp_path / "bucket"
    first = Run(stored(plan, place))
    first.load()
    first.steps(2).save()
    run = again(plan, place, "elsewhere")
    run.steps(1)
    assert run.losses == whole.losses[2:]


def test_only_the_parts_of_what_is_asked_for_are_read(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, wanted = Run(plan).steps(1).save(), list[str]()
    real = read.read_pieces
    monkeypatch.setattr(read, "read_pieces", lambda path, seal: wanted.append(path.name) or real(path, seal))
    reader = CheckpointReader(folder)
    assert reader.shapes("weight")["out.weight"] == (16, 8)
    assert wanted == []
    reader.tensor("weight", "out.weight")
    reader.tensor("weight", "out.weight")
    assert len(wanted) == 1


def test_every_change_of_a_single_byte_is_noticed(plan: RunPlan) -> None:
    folder, draw = Run(plan).steps(2).save(), random.Random(5)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    missed = []
    for file in files:
        whole = file.read_bytes()
        for at in (draw.randrange(len(whole)) for _ in range(20)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ draw.randrange(1, 256)]) + whole[at + 1 :])
            try:
                CheckpointReader(folder).verify()
                missed.append((file.name, at))
            except CheckpointError:
                pass
        file.write_bytes(whole)
    assert missed == []
    CheckpointReader(folder).verify()


def weights(content: dict[str, Any]) -> dict[str, Any]:
    return next(piece for piece in content["pieces"] if piece["kind"] == "weight")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda part: part["pieces"].remove(weights(part)), "its pieces are not those of the manifest"),
        (lambda part: weights(part).update(name="stranger"), "its pieces are not those of the manifest"),
        (lambda part: weights(part).update(dtype="F16"), "its pieces are not those of the manifest"),
        (lambda part: weights(part).update(shape=[1]), "its pieces are not those of the manifest"),
        (lambda part: weights(part).update(flat_range=[0, 3]), "do not fit together"),
        (lambda part: part["pieces"].append(weights(part)), "do not fit together"),
        (lambda part: weights(part).update(file="../../etc/passwd"), "not a list of pieces"),
        (lambda part: weights(part).update(file="rank-00009.weights.safetensors"), "not those of the manifest"),
        (lambda part: weights(part).update(rank=0, kind="rng"), "not those of the manifest"),
        (lambda part: part.clear(), "not a list of pieces"),
    ],
)
def test_a_part_by_somebody_who_makes_all_checksums_anew_is_refused(
    plan: RunPlan, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    folder = Run(plan).steps(2).save()
    manifest, _ = read_sealed(folder / "manifest.json")
    edit(change, weights(manifest)["file"])(folder)
    with pytest.raises(CheckpointError, match=says):
        Run(with_checkpoint(plan, load=str(folder))).load()


@pytest.mark.parametrize("file", ["pieces-00000.json", "pieces-rng-00000.json"])
def test_a_part_that_is_gone_is_named(plan: RunPlan, file: str) -> None:
    folder = Run(plan).steps(2).save()
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        Run(with_checkpoint(plan, load=str(folder))).load()


@pytest.mark.parametrize("most", [0, 10_000])
def test_ranks_from_256_on_have_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("neox_core.checkpoint.manifest.MOST_PIECES", most)
    written = tmp_path / ".step-00000007.tmp"
    written.mkdir()
    whole = torch.arange(600.0)
    for rank in range(600):
        contents = RankContents(rank)
        place: dict[str, Any] = {"shape": (600,), "flat_range": (rank, rank + 1)}
        contents.add("weights", "weight", "a.weight", whole[rank : rank + 1], **place)
        contents.add("rng", "rng", f"{rank}/torch", torch.tensor([rank]), rank=rank)
        write_rank(written, contents)
    write_manifest(written, 7, 600, "{}", {}, optimizer=False, rng=True)
    folder = tmp_path / "step-00000007"
    publish(written, folder)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["ranks-00001", "ranks-00002"]
    assert len(list(folder.glob("*.safetensors"))) == len(list((folder / "ranks-00001").iterdir())) == 512
    assert torch.equal(read_weights(folder)["a.weight"], whole)
    reader = CheckpointReader(folder)
    reader.verify()
    assert [int(reader.of_rank("rng", rank)["torch"]) for rank in (0, 255, 256, 599)] == [0, 255, 256, 599]
    assert bool(parts_of(folder)) is (most == 0)


def test_a_manifest_names_no_file_beside_the_checkpoint() -> None:
    piece = Piece("rank-00001.weights.safetensors", "k", "weight", "a", "F32", (1,))
    for file in ("ranks-00001/../x.json", "ranks-00001/run.json", "../pieces-00000.json", "pieces-x-00000.json"):
        with pytest.raises(ValueError, match="must match regex"):
            evolve(piece, file=file)


def test_the_seal_of_a_part_is_that_of_its_bytes(plan: RunPlan) -> None:
    folder = Run(plan).steps(1).save()
    files = read_sealed(folder / "manifest.json")[0]["files"]
    for part in parts_of(folder):
        assert files[part]["sha256"] == hashlib.sha256((folder / part).read_bytes()).hexdigest()
        assert len(json.loads((folder / part).read_bytes())["pieces"]) > 0


@pytest.mark.parametrize("most", [0, 10_000], ids=["parts", "one manifest"])
def test_each_changed_bit_is_noticed(plan: RunPlan, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 anywhere in a checkpoint and in `latest`: as many of each file, however small."""
    monkeypatch.setattr("neox_core.checkpoint.manifest.MOST_PIECES", most)
    folder = Run(plan).steps(1).save()
    files = [*sorted(folder.iterdir()), folder.parent / "latest"]
    assert len(parts_of(folder)) == (0 if most else len(files) - 7)
    draw = random.Random(most)
    for number in range(200):
        file = files[number % len(files)]
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(CheckpointError):
            _read_all(folder.parent)
        file.write_bytes(whole)
    assert _read_all(folder.parent) == folder


def _read_all(folder: Path) -> Path | None:
    found = find_checkpoint(folder)
    assert found is not None
    CheckpointReader(found).verify()
    read_stored(found, "manifest.json", "state.json", "run.json")
    return found
