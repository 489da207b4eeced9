"""Checkpoints on an S3 server: whole after kills at any instant, and errors that hold no secret."""

import hashlib
import json
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("moto", reason="pip install 'moto[server]' tests against an S3 server")

sys.path.insert(0, str(Path(__file__).parent))

from neox_author.testing import check_store, load_only
from neox_fsspec import checkpoints, objects
from server import KEYS, s3_server
from uploads import URL, remote

from neox_core.checkpoint.manifest import read_manifest
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import StorePlan
from neox_core.plan.stored.saved import RUN, STATE

KILLS, MOVED = 20, 4
"""At least, of uploads before their end, and of those after which the newest checkpoint is what was uploaded."""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as address:
        yield address


def test_s3_keeps_the_contract() -> None:
    check_store(load_only("neox-fsspec"), "s3", place="bucket/contract")


def prepared(folder: Path, step: int) -> None:
    """What one rank has written of a step, and what belongs to every checkpoint."""
    written = folder / f"written-{step}"
    written.mkdir(parents=True)
    files = {}
    for part in ("weights", "optimizer", "rng"):
        data = f"{part} of step {step} ".encode() * 20_000
        (written / f"rank-00000.{part}.safetensors").write_bytes(data)
        files[f"rank-00000.{part}.safetensors"] = [len(data), hashlib.sha256(data).hexdigest()]
    (written / ".rank-00000.json").write_text(json.dumps({"files": files, "pieces": [], "values": {}}))
    seals = {}
    for name in (RUN, STATE):
        (written / name).write_text(json.dumps({"of": name}))
        data = (written / name).read_bytes()
        seals[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "seals.json").write_text(json.dumps(seals))


def whole(folder: Path) -> int:
    """The step of the newest checkpoint, all of whose files are what its manifest names."""
    shutil.rmtree(folder / "reader", ignore_errors=True)
    reader = remote(folder / "reader")
    found = reader.find()
    assert found is not None
    seals = read_manifest(found).files
    assert len(seals) == 5
    for file, seal in seals.items():
        assert reader.fetch(found, file, seal.size, seal.sha256).stat().st_size == seal.size
    return int(found.name.removeprefix("step-"))


@contextmanager
def saving(folder: Path) -> Iterator[Callable[[int, float | str], bool]]:
    """Saves a step in another process, see `uploads.py`, and tells whether that has ended by itself."""
    for step in (1, 2, 3):
        prepared(folder, step)
    command = [sys.executable, str(Path(__file__).with_name("uploads.py")), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None

        def save(step: int, part: float | str) -> bool:
            print(step, part, file=forks.stdin, flush=True)
            return forks.stdout.readline().strip() == "0"

        yield save
        forks.stdin.close()


def start_over(folder: Path, save: Callable[[int, float | str], bool]) -> None:
    """Leave a checkpoint of step 1 alone."""
    reader = remote(folder / "reader")
    reader._delete([*reader._keys()])
    assert save(1, 0.0)


def test_uploads_that_are_killed_leave_the_last_checkpoint(tmp_path: Path) -> None:
    """With keep-last-n-checkpoints: 1, at random instants of saves of new steps and of steps that are there already."""
    draw = random.Random(7)
    with saving(tmp_path) as save:
        assert save(1, 0.0)
        assert save(1, 0.0)
        last, killed, moved = 1, 0, 0
        while killed < KILLS or moved < MOVED:
            step = draw.choice((last, min(3, last + 1), 3))
            done = save(step, draw.uniform(0.01, 1.2))
            found = whole(tmp_path)
            assert found == step or (found == last and not done)
            killed, moved, last = killed + (not done), moved + (found != last), found
            if last == 3:
                start_over(tmp_path, save)
                last = 1


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_before_any_request_leaves_the_last_checkpoint(step: int, tmp_path: Path) -> None:
    """Of a save of a new step, and of one that is there already; the next save then ends, and nothing is left over."""
    with saving(tmp_path) as save:
        start_over(tmp_path, save)
        found, request = [], 0
        while not save(step, f"at-{(request := request + 1)}"):
            found.append(whole(tmp_path))
            if found[-1] != 1:
                start_over(tmp_path, save)
        assert save(3, 0.0)
    assert request > 12
    assert found == sorted(found)
    assert {*found} == {1, step}
    reader = remote(tmp_path / "reader")
    assert {key.partition("/")[0] for key in reader._keys()} == {"step-00000003", "latest", ".owner"}
    assert len(reader._keys()) == 3 + 5


def test_no_message_repeats_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setattr(checkpoints, "WAITS_S", (0.0,))
    store = objects.s3("bucket/run", None)

    def fails(*args: object, **named: object) -> None:
        raise RuntimeError(f"signed with {secret} by {KEYS['AWS_ACCESS_KEY_ID']}")

    monkeypatch.setattr(store, "_files", fails)
    with pytest.raises(OSError, match=r"RuntimeError: signed with \$AWS_SECRET_ACCESS_KEY by \$AWS_ACCESS_KEY_ID"):
        store.list()


def test_what_the_server_refuses_is_named_with_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find(url: str) -> str:
        from attrs import evolve

        plan = evolve(StorePlan(URL, remote(tmp_path)._component, str(tmp_path / "reader")), url=url)
        with pytest.raises(CheckpointError) as raised:
            checkpoints.Checkpoints(plan).find()
        return str(raised.value)

    assert find("s3://nowhere/run").startswith("cannot list s3://nowhere/run: FileNotFoundError: ")
    monkeypatch.setattr(checkpoints, "WAITS_S", (0.0,))
    monkeypatch.setitem(objects.TIMEOUTS["config_kwargs"], "retries", {"max_attempts": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    said = find(URL)
    assert "cannot list s3://bucket/run: OSError: EndpointConnectionError" in said
    assert "(2 attempts)" in said
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert "PermissionError: Unable to locate credentials" in find(URL)
