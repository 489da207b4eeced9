"""A checkpoint of many pieces: the manifest lists tensors, and their pieces are in parts, read when they are needed."""

import hashlib
import json
import random
from collections.abc import Callable
from itertools import combinations
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
from neox_core.parallel.tensor import Cut
from neox_core.plan.runfile import RunPlan
from neox_core.plan.stored.saved import find_checkpoint, read_sealed, read_stored

__all__ = ["broken", "place", "test_a_save_that_is_killed_before_any_call_leaves_the_last_checkpoint"]

pytestmark = pytest.mark.usefixtures("process_group")

EARLIER = Path(__file__).parents[2] / "data" / "checkpoint-format-2" / "step-00000007"
"""Of bdd74d32: of four ranks, what `spread` has."""


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_core.checkpoint.manifest.MOST_PIECES", 0)
    monkeypatch.setattr("neox_core.checkpoint.manifest.RANKS_OF_A_PART", 2)


def parts_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("pieces-*.json"))


def test_a_resumed_run_is_that_which_was_not_stopped(plan: RunPlan) -> None:
    whole = Run(plan).steps(4)
    folder = Run(plan).steps(2).save()
    assert parts_of(folder) == ["pieces-00000.json", "pieces-rng-00000.json"]
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


def spread(tmp_path: Path, ranks: int, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> Path:
    """A checkpoint: each rank has three elements of a tensor and a row of another, and one rank has a third tensor."""
    written = tmp_path / ".step-00000007.tmp"
    written.mkdir()
    for rank in range(ranks):
        contents, row = RankContents(rank), (rank, rank + 1)
        flat = torch.arange(3.0 * rank, 3.0 * rank + 3)
        contents.add("weights", "weight", "flat", flat, shape=(ranks // 2, 6), flat_range=(3 * rank, 3 * rank + 3))
        rows = torch.tensor([[rank, 10.0 + rank]])
        contents.add("weights", "weight", "rows", rows, shape=(ranks, 2), slice=(row, (0, 2)))
        if rank == 2:
            contents.add("weights", "weight", "whole", torch.tensor([5.0, 6.0]))
        contents.add("rng", "rng", f"{rank}/torch", torch.tensor([rank]), rank=rank)
        write_rank(written, contents)
    write_manifest(written, 7, ranks, '{"format": 1}', {}, optimizer=False, rng=True)
    publish(written, tmp_path / "step-00000007")
    edit(change)(tmp_path / "step-00000007")
    return tmp_path / "step-00000007"


def check_spread(reader: CheckpointReader, ranks: int) -> None:
    """Every tensor is whole, each run of elements of one is right, and each part of each split of another."""
    flat, rows = torch.arange(3.0 * ranks), torch.tensor([[rank, 10.0 + rank] for rank in range(ranks)])
    for first in (0, 3 * ranks - 3):  # what lies between is not read yet
        assert torch.equal(reader.flat("weight", "flat", None, first, first + 3), flat[first : first + 3])
    assert torch.equal(reader.tensor("weight", "flat"), flat.view(ranks // 2, 6))
    reader.verify()
    assert torch.equal(reader.tensor("weight", "rows"), rows)
    assert reader.tensor("weight", "whole").tolist() == [5.0, 6.0]
    for first, last in combinations(range(3 * ranks + 1), 2):
        assert torch.equal(reader.flat("weight", "flat", None, first, last), flat[first:last])
    for size in (1, 2, ranks):
        for cut in (Cut(0, (ranks,), rank, size) for rank in range(size)):
            part = cut.of(rows).reshape(-1)
            for first, last in combinations(range(len(part) + 1), 2):
                assert torch.equal(reader.part("weight", "rows", None, cut, first, last), part[first:last])
    for cut in (Cut(1, (3, 3), rank, 3) for rank in range(3)):  # of two sections, stored without a split
        part = cut.of(flat.view(ranks // 2, 6)).reshape(-1)
        assert torch.equal(reader.part("weight", "flat", None, cut, 1, len(part)), part[1:])
    assert [int(reader.of_rank("rng", rank)["torch"]) for rank in range(ranks)] == [*range(ranks)]


@pytest.mark.parametrize("of_a_part", [1, 2, 3, 64])
def test_whatever_is_asked_for_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_part: int) -> None:
    monkeypatch.setattr("neox_core.checkpoint.manifest.RANKS_OF_A_PART", of_a_part)
    folder = spread(tmp_path, 8)
    assert len(parts_of(folder)) == 1 + -(-8 // of_a_part)
    check_spread(CheckpointReader(folder), 8)


def test_parts_by_tensor_as_an_earlier_version_wrote_them() -> None:
    check_spread(CheckpointReader(EARLIER), 4)


def test_only_the_parts_with_what_is_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, wanted = spread(tmp_path, 16), list[str]()
    real = read.read_pieces
    monkeypatch.setattr(read, "read_pieces", lambda path, seal: wanted.append(path.name[7:12]) or real(path, seal))

    def read_for(*of_flat: int) -> list[str]:
        wanted.clear()
        CheckpointReader(folder).flat("weight", "flat", None, *of_flat)
        return list(wanted)

    assert CheckpointReader(folder).shapes("weight") == {"flat": (8, 6), "rows": (16, 2), "whole": (2,)}
    assert wanted == []
    assert [read_for(3 * rank, 3 * rank + 3) for rank in range(16)] == [[f"{rank // 2:05d}"] for rank in range(16)]
    assert read_for(5, 7) == ["00000", "00001"]
    assert sorted(read_for(0, 48)) == [f"{part:05d}" for part in range(8)]
    wanted.clear()
    reader = CheckpointReader(folder)
    assert reader.part("weight", "rows", None, Cut(0, (16,), 9, 16), 0, 2).tolist() == [9.0, 19.0]
    assert wanted == ["00000", "00004"]  # where ranks would share each row, and where each has some
    assert reader.tensor("weight", "whole").tolist() == [5.0, 6.0]
    assert wanted == ["00000", "00004", "00001"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda flat: flat["parts"].pop(), "do not fit together"),
        (lambda flat: flat["parts"].append("pieces-00009.json"), "names no checksum for pieces-00009.json"),
        (lambda flat: flat["parts"].append("../../etc/passwd"), "not a manifest"),
        (lambda flat: flat["parts"].append("rank-00000.weights.safetensors"), "not a manifest"),
        (lambda flat: flat.update(parts=[]), "do not fit together"),
        (lambda flat: flat.update(parts=["pieces-00001.json"]), "its pieces are not those of the manifest"),
        (lambda flat: flat.update(parts=7), "not a manifest"),
        (lambda flat: flat.update(shape=[4, 12]), "its pieces are not those of the manifest"),
        (lambda flat: flat.update(file="rank-00000.weights.safetensors"), "not those of the manifest"),
    ],
)
def test_a_list_of_parts_by_somebody_who_makes_all_checksums_anew_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    def of_flat(manifest: dict[str, Any]) -> None:
        change(next(piece for piece in manifest["pieces"] if piece["name"] == "flat"))

    folder = spread(tmp_path, 8, of_flat)
    with pytest.raises(CheckpointError, match=says):
        CheckpointReader(folder).verify()


def missing(flat: dict[str, Any]) -> None:
    flat["flat_range"] = [flat["flat_range"][0], flat["flat_range"][1] - 1]


@pytest.mark.parametrize("element", range(3))
def test_elements_that_no_part_has(tmp_path: Path, element: int) -> None:
    folder = spread(tmp_path, 8)
    edit(lambda part: missing(next(each for each in part["pieces"] if each["name"] == "flat")), "pieces-00002.json")(
        folder
    )
    reader = CheckpointReader(folder)
    assert reader.flat("weight", "flat", None, 0, 12).tolist() == list(range(12))
    with pytest.raises(CheckpointError, match="the pieces of weight flat do not fit together"):
        reader.flat("weight", "flat", None, 12 + element, 15)
    with pytest.raises(CheckpointError, match="the pieces of weight flat do not fit together"):
        CheckpointReader(folder).verify()


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
        (lambda part: part["pieces"].append({**weights(part), "rank": 0, "name": "x"}), "not those of the manifest"),
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
    assert len(parts_of(folder)) == (0 if most else 2)
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
