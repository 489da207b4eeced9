"""Checkpoints in a store: complete or absent, the same run after a resume, and errors that say what was saved."""

import hashlib
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve
from checkpoint_runs import Run, with_checkpoint
from neox_fsspec import checkpoints
from neox_fsspec.folder import Folder

from neox_core.errors import CheckpointError, PluginError
from neox_core.plan.runfile import ComponentRef, RunPlan, StorePlan, to_json

pytestmark = pytest.mark.usefixtures("process_group")

KEEPER = "neox_fsspec.checkpoints:Checkpoints"
FILE = ComponentRef("store", "file", "neox-fsspec", "0.1.0", "neox_fsspec.folder:Folder", planner=KEEPER)


class Broken:
    """A store in a folder, whose calls fail as a test says."""

    fails: ClassVar[dict[str, list[BaseException | None]]] = {}
    calls: ClassVar[list[tuple[str, object]]] = []

    def __init__(self, place: str, settings: None) -> None:
        self._inner = Folder(place, None)

    def _may(self, name: str, key: object) -> None:
        self.calls.append((name, key))
        for what, errors in self.fails.items():
            if errors and what in f"{name} {key}" and (error := errors.pop(0)):
                raise error

    def list(self) -> Iterable[str]:
        self._may("list", "")
        return self._inner.list()

    def read(self, key: str, first: int, last: int) -> bytes:
        self._may("read", key)
        return self._inner.read(key, first, last)

    def write(self, key: str, file: Path) -> None:
        self._may("write", key)
        self._inner.write(key, file)

    def delete(self, keys: Sequence[str]) -> None:
        self._may("delete", keys)
        self._inner.delete(keys)


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[BaseException | None]]:
    monkeypatch.setattr(checkpoints, "WAITS_S", (0.0,) * 4)
    monkeypatch.setitem(sys.modules, "neox_test_broken", SimpleNamespace(Broken=Broken))
    monkeypatch.setattr(Broken, "calls", [])
    monkeypatch.setattr(Broken, "fails", {})
    return Broken.fails


def stored(plan: RunPlan, place: Path, host: str = "host", component: ComponentRef = FILE, **changes: Any) -> RunPlan:
    """A plan that saves in a store. host: where its own files lie."""
    url = f"{component.name}://{place}"
    return with_checkpoint(
        plan, **{"save": url, "stores": (StorePlan(url, component, str(place.parent / host)),), **changes}
    )


def breaking(plan: RunPlan, place: Path, host: str = "host", **changes: Any) -> RunPlan:
    return stored(plan, place, host, evolve(FILE, name="broken", target="neox_test_broken:Broken"), **changes)


def again(plan: RunPlan, place: Path, host: str, **changes: Any) -> Run:
    """The run that `--resume auto` starts, on another host."""
    plan = stored(plan, place, host, resume="auto", **changes)
    run = Run(with_checkpoint(plan, load=plan.checkpoint.save))
    run.load()
    return run


def steps_in(place: Path) -> list[str]:
    return sorted(path.parent.name for path in place.glob("step-*/manifest.json"))


def test_a_resumed_run_is_that_which_was_not_stopped(plan: RunPlan, place: Path) -> None:
    whole = Run(plan).steps(4)
    first = Run(stored(plan, place))
    assert first.load().path is None
    assert first.steps(2).save() == f"file://{place}/step-00000002"
    run = again(plan, place, "elsewhere")
    assert run.state.step == 2
    run.steps(2)
    assert first.losses + run.losses == whole.losses
    assert all(torch.equal(weight, run.weights()[name]) for name, weight in whole.weights().items())


def test_what_lies_in_the_store_and_what_is_left_on_the_host(plan: RunPlan, place: Path) -> None:
    run = Run(stored(plan, place, keep_last=2))
    run.load()
    for _ in range(3):
        run.steps(1).save()
    assert steps_in(place) == ["step-00000002", "step-00000003"]
    assert not list((place / "step-00000001").iterdir())
    for folder in (place / name for name in steps_in(place)):
        files = {path.name for path in folder.iterdir()} - {"manifest.json"}
        assert len(files) == 5
        for name in files:
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            assert name.endswith(f".{digest[:16]}")
    assert sorted(path.name for path in place.iterdir() if path.is_file()) == [".owner", "latest"]
    assert not [path for path in (place.parent / "host").rglob("*") if "rank" in path.name]
    again(plan, place, "elsewhere")
    assert not [path for path in (place.parent / "elsewhere").rglob("*") if "rank" in path.name]


@pytest.mark.parametrize("until", range(12))
def test_a_save_that_is_killed_before_any_call_leaves_the_last_checkpoint(
    plan: RunPlan, place: Path, broken: dict[str, Any], until: int
) -> None:
    """Also where it replaces that checkpoint: a run that starts at step 0 and reaches its step again."""
    first = Run(stored(plan, place, keep_last=1))
    first.steps(2).save()
    before = first.weights()
    other = Run(breaking(evolve(plan, train=evolve(plan.train, seed=2)), place, "other", keep_last=1))
    other.load()
    torch.nn.init.ones_(other.engine.model.out.weight)
    other.steps(2)
    Broken.calls.clear()
    broken[""] = [*[None] * until, KilledError()]
    try:
        other.save()
    except KilledError:
        assert len(Broken.calls) == until + 1
    else:
        assert until > 9
    broken.clear()
    found = again(plan, place, "third").weights()
    same = [
        all(torch.equal(weight, found[name]) for name, weight in all_of.items()) for all_of in (before, other.weights())
    ]
    assert same in ([True, False], [False, True])


def test_the_run_that_was_started_last_saves(plan: RunPlan, place: Path) -> None:
    first, second = Run(stored(plan, place, "one")), Run(stored(plan, place, "two"))
    first.load()
    first.steps(1).save()
    second.load()
    with pytest.raises(CheckpointError, match="another run has started to save here"):
        first.steps(1).save()
    assert steps_in(place) == ["step-00000001"]
    second.steps(3).save()
    assert again(plan, place, "three").state.step == 3


def test_leftovers_of_a_killed_save_go_and_nothing_else(plan: RunPlan, place: Path, broken: dict[str, Any]) -> None:
    run = Run(breaking(plan, place))
    run.load()
    run.steps(1).save()
    broken["write step-00000002/manifest.json"] = [KilledError()]
    with pytest.raises(KilledError):
        run.steps(1).save()
    foreign = [place / "step-00000002" / "notes.txt", place / "step-00000009" / "rank-00000.weights.safetensors"]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    assert len(list((place / "step-00000002").iterdir())) == 7
    again(plan, place, "elsewhere")
    assert list((place / "step-00000002").iterdir()) == foreign[:1]
    assert foreign[1].exists()
    assert steps_in(place) == ["step-00000001"]


def test_a_local_folder_that_was_copied_there_can_be_loaded(plan: RunPlan, place: Path) -> None:
    local = Run(plan).steps(2)
    shutil.copytree(local.save().parent, place)
    run = again(plan, place, "host")
    assert (run.state.step, run.weights().keys()) == (2, local.weights().keys())
    one = f"file://{place}/step-00000002"
    plan = with_checkpoint(plan, save=None, load=one, stores=(StorePlan(one, FILE, str(place.parent / "another")),))
    assert Run(plan).load().path == one


@pytest.mark.parametrize("change", ["changed", "deleted", "cut"])
@pytest.mark.parametrize("file", ["weights", "optimizer", "manifest", "latest", "state.json"])
def test_damage_is_named_by_its_address(plan: RunPlan, place: Path, file: str, change: str) -> None:
    Run(stored(plan, place)).steps(1).save()
    (path,) = (each for each in place.rglob("*") if each.is_file() and file in each.name)
    data = bytearray(path.read_bytes())
    if change == "deleted":
        path.unlink()
        if file in ("manifest", "latest"):  # as in a local folder: no checkpoint, and the newest
            assert again(plan, place, "elsewhere").state.step == (0 if file == "manifest" else 1)
            return
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if change == "changed" else data[:-2])
    with pytest.raises(CheckpointError) as raised:
        again(plan, place, "elsewhere")
    assert f"file://{place}" in str(raised.value)
    assert "elsewhere" not in str(raised.value)


def test_a_call_that_fails_is_repeated_and_then_given_up(plan: RunPlan, place: Path, broken: dict[str, Any]) -> None:
    run = Run(breaking(plan, place))
    run.load()
    broken["write step-00000001/manifest.json"] = [OSError("slow down")] * 4
    run.steps(1).save()
    assert steps_in(place) == ["step-00000001"]
    broken["write step-00000002/rank"] = [OSError("slow down")] * 5
    with pytest.raises(CheckpointError) as raised:
        run.steps(1).save()
    assert f"broken://{place}: OSError: slow down (5 attempts)" in raised.value.message
    assert "not saved" in raised.value.hint
    assert "those before it are unchanged" in raised.value.hint
    assert again(plan, place, "elsewhere").state.step == 1


def test_what_cannot_pass_is_not_repeated(plan: RunPlan, place: Path, broken: dict[str, Any]) -> None:
    run = Run(breaking(plan, place))
    broken["list"] = [PermissionError("\x1b[31mno")]
    with pytest.raises(CheckpointError, match=r"cannot list broken://.*: PermissionError: \\x1b\[31mno\n"):
        run.load()
    broken["list"] = [ZeroDivisionError("oh")]
    with pytest.raises(PluginError, match=r"store neox-fsspec:broken 0\.1\.0 failed: ZeroDivisionError: oh"):
        run.load()


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("list", lambda self: [1, 2], r": list\(\) gives 1: its contract says keys, as texts"),
        ("list", lambda self: None, " failed: TypeError: 'NoneType' object is not iterable"),
        ("list", lambda self: "latest", r": list\(\) gives b'latest'"),
        ("list", lambda self: [b"latest"], r": list\(\) gives b'latest'"),
        ("read", lambda self, *of: "text", r": read\(\) gives a str for [\d,]+ of .*: its contract says bytes"),
        (
            "read",
            lambda self, key, first, last: bytes(last - first + 1),
            r": read\(\) gives [\d,]+ bytes for",
        ),
    ],
)
def test_a_store_that_lies_is_named(
    plan: RunPlan, place: Path, broken: Any, monkeypatch: pytest.MonkeyPatch, method: str, answer: Any, said: str
) -> None:
    run = Run(breaking(plan, place))
    run.load()
    run.steps(1).save()
    reading = breaking(plan, place, "elsewhere", load=f"broken://{place}")
    with monkeypatch.context() as patch:
        patch.setattr(Broken, method, answer)
        with pytest.raises(PluginError, match=f"^store neox-fsspec:broken 0.1.0{said}"):
            Run(reading).load()
    assert Run(reading).load().state.step == 1


def test_a_run_without_a_store_writes_the_run_file_that_it_always_wrote(plan: RunPlan, place: Path) -> None:
    assert "stores" not in to_json(plan)
    assert "stores" in to_json(stored(plan, place))


def test_a_run_that_trains_on_uploads_what_one_that_waits_uploads(plan: RunPlan, place: Path, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"keep_last": 1}
    waits = stored(plan, tmp_path / "waits", **kept)
    for each in (waits, stored(plan, place, "behind", background=True, **kept)):
        behind = Run(each)
        for _ in range(2):
            behind.steps(1).checkpointer.save(behind.state)
        behind.checkpointer.wait()
    assert behind.checkpointer.completed() == [(step, f"file://{place}/step-0000000{step}") for step in (1, 2)]
    files = [{path.name for path in each.glob("step-*/rank*")} for each in (place, tmp_path / "waits")]
    assert files[0] == files[1]
    assert steps_in(place) == ["step-00000002"]
    assert not [path for path in (place.parent / "behind").rglob("*") if "rank" in path.name]
    assert again(plan, place, "elsewhere").state.step == 2
    behind.checkpointer.close()


def test_a_run_that_trains_on_ends_where_another_one_saves_in_its_place(plan: RunPlan, place: Path) -> None:
    first = Run(stored(plan, place, "one", background=True))
    first.steps(1).checkpointer.save(first.state)
    first.checkpointer.wait()
    second = Run(stored(plan, place, "other"))
    second.load()
    first.steps(1).checkpointer.save(first.state)
    with pytest.raises(CheckpointError, match="another run has started to save here"):
        first.checkpointer.wait()
    assert steps_in(place) == ["step-00000001"]
    first.checkpointer.close()


def test_a_run_goes_back_to_what_it_saved_last(plan: RunPlan, place: Path) -> None:
    run = Run(stored(plan, place))
    run.load()
    run.steps(2).save()
    before = run.weights()
    run.steps(1)
    run.checkpointer.rewind(run.state)
    assert run.state.step == 2
    assert all(torch.equal(weight, run.weights()[name]) for name, weight in before.items())
    run.steps(3).save()
    assert steps_in(place) == ["step-00000002", "step-00000005"]
