"""The folders of an offload to nvme: who gets which, and what is said of one that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_deepspeed import files
from neox_deepspeed.files import remove_own_folders, reserve, use_own_folders

from neox_core.errors import ConfigError


class Plan:
    """What is looked at of a plan."""

    def __init__(self, run_dir: Path, path: Path) -> None:
        self.run_dir = str(run_dir)
        block = {"device": "nvme", "nvme_path": str(path)}
        aio = {"block_size": 4096, "queue_depth": 8, "single_submit": False, "overlap_events": True}
        self.engine = {
            "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": block},
            "aio": {**aio, "intra_op_parallelism": 3},
        }


class Handle:
    """Reads and writes at once what DeepSpeed's handle does later."""

    lost = 0

    def __init__(self, **settings: Any) -> None:
        assert settings["intra_op_parallelism"] == 3

    def new_cpu_locked_tensor(self, count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(count, dtype=like.dtype)

    def async_pwrite(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        assert buffer.nbytes % 3072 == 0
        assert Path(path).stat().st_size == buffer.nbytes
        data = buffer.numpy().tobytes()
        Path(path).write_bytes(data[: len(data) - self.lost] + bytes(self.lost))
        return 0

    def async_pread(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        buffer.copy_(torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=buffer.dtype))
        return 0

    def wait(self) -> int:
        return 1


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> type[Handle]:
    class Module:
        aio_handle = type("Own", (Handle,), {})

    monkeypatch.setattr(files, "async_io", Module)
    return Module.aio_handle


@pytest.mark.usefixtures("handle")
def test_each_run_and_rank_has_a_folder_of_its_own(tmp_path: Path) -> None:
    found = set()
    for run, rank in (("a/run", 0), ("a/run", 1), ("b/run", 0)):
        plan: Any = Plan(tmp_path / run, tmp_path)
        config = json.loads(json.dumps(plan.engine))
        use_own_folders(plan, config, rank)
        folder = Path(config["zero_optimization"]["offload_optimizer"]["nvme_path"])
        assert folder.is_relative_to(tmp_path)
        assert list(folder.iterdir()) == []
        found.add(folder)
        (folder / "left.swp").touch()
        assert plan.engine["zero_optimization"]["offload_optimizer"]["nvme_path"] == str(tmp_path)
        use_own_folders(plan, config, rank)  # of a run that was killed
        assert list(folder.iterdir()) == []
    assert len(found) == 3
    for run, rank in (("a/run", 0), ("a/run", 1), ("b/run", 0)):
        remove_own_folders(Plan(tmp_path / run, tmp_path), rank)  # type: ignore[arg-type]  # of a plan, what is used
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "said"), [("missing", "no such folder"), ("file", "no such folder")])
def test_a_path_that_cannot_be_used(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    plan: Any = Plan(tmp_path / "run", tmp_path / name)
    with pytest.raises(ConfigError) as error:
        use_own_folders(plan, dict(plan.engine), 0)
    assert error.value.message == f"zero_optimization.offload_optimizer.nvme_path: {tmp_path / name}: {said}"


def test_a_disk_that_loses_what_is_written(tmp_path: Path, handle: type[Handle]) -> None:
    handle.lost = 1
    plan: Any = Plan(tmp_path / "run", tmp_path)
    with pytest.raises(ConfigError, match="does not read back what it wrote"):
        use_own_folders(plan, dict(plan.engine), 0)


def test_more_requests_than_the_kernel_has(tmp_path: Path) -> None:
    plan: Any = Plan(tmp_path / "run", tmp_path)
    config = {**plan.engine, "aio": {**plan.engine["aio"], "queue_depth": 10**9}}
    with pytest.raises(ConfigError, match=r"aio\.queue_depth: a rank asks for 12000000000 requests in flight"):
        use_own_folders(plan, config, 0)


def test_room_is_reserved(tmp_path: Path) -> None:
    path = tmp_path / "some.swp"
    reserve(str(path), 4096)
    assert path.stat().st_blocks * 512 >= 4096
    path.write_bytes(b"x" * 4096)
    reserve(str(path), 4096)
    assert path.read_bytes() == b"x" * 4096
    with pytest.raises(ConfigError, match="no space for what ZeRO offloads: "):
        reserve(str(path), 1 << 62)
