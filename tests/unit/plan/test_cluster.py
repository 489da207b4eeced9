"""Devices without torch, and the ranks that follow."""

from pathlib import Path
from typing import Any

import pytest

from neox_core.config.dialects import modernise
from neox_core.config.problem import Problem
from neox_core.config.read.load import load
from neox_core.config.report import errors
from neox_core.config.schema.structure import structure
from neox_core.plan.cluster import ClusterShape, Machine, cluster_plan, cluster_shape, detect


def devices(root: Path, *names: str) -> Path:
    (root / "dev").mkdir(parents=True)
    for name in names:
        (root / "dev" / name).touch()
    return root


def test_devices_are_counted_by_their_files(tmp_path: Path) -> None:
    root = devices(tmp_path, "nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null")
    assert detect({}, root).num_cuda == 3


def test_devices_are_counted_by_the_driver_where_dev_has_none(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert detect({}, tmp_path).num_cuda == 1


def test_a_machine_without(tmp_path: Path) -> None:
    machine = detect({}, tmp_path)
    assert machine.num_cuda == 0
    assert machine.num_cores >= 1


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("-1", 0), ("0", 1), ("1,0", 2), ("0,-1,1", 1), ("0,1,2,3", 2), ("GPU-8a,GPU-9b", 2)],
)
def test_visible_devices_limit(tmp_path: Path, visible: str, count: int) -> None:
    assert detect({"CUDA_VISIBLE_DEVICES": visible}, devices(tmp_path, "nvidia0", "nvidia1")).num_cuda == count


@pytest.fixture
def ranks(tmp_path: Path, text: str, catalog: Any) -> Any:
    def _ranks(more: str, num_cuda: int, num_cores: int = 8) -> tuple[ClusterShape, list[str], Any]:
        (tmp_path / "c.yml").write_text(text + more)
        config, found = structure(modernise(load([tmp_path / "c.yml"]), catalog.registry), catalog)
        assert not errors(found)
        problems: list[Problem] = []
        shape = cluster_shape(config, Machine(num_cuda, num_cores), problems)
        return shape, [f"{each.key}: {each.message}" for each in problems], cluster_plan(config, shape)

    return _ranks


@pytest.mark.parametrize(
    ("more", "num_cuda", "expected"),
    [
        ("", 0, ("cpu", 1, "gloo")),
        ("num_gpus: 2\n", 0, ("cpu", 2, "gloo")),
        ("num-accelerators: 2\n", 0, ("cpu", 2, "gloo")),
        ("", 4, ("cuda", 4, "nccl")),
        ("num_gpus: 3\n", 4, ("cuda", 3, "nccl")),
        ("device: cpu\n", 4, ("cpu", 1, "gloo")),
        ("device: cuda\n", 2, ("cuda", 2, "nccl")),
        ("distributed-backend: gloo\n", 2, ("cuda", 2, "gloo")),
    ],
)
def test_ranks_by_devices(ranks: Any, more: str, num_cuda: int, expected: tuple[str, int, str]) -> None:
    shape, problems, plan = ranks(more, num_cuda)
    assert (shape.device, shape.num_ranks, shape.backend) == expected
    assert not problems
    assert plan.world_size == expected[1]
    assert (plan.master_addr, plan.master_port) == ("127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("more", "num_cuda", "said"),
    [
        (
            "distributed-backend: nccl\n",
            0,
            "distributed-backend: nccl needs NVIDIA devices, and this run is on the CPU",
        ),
        ("device: cuda\n", 0, "device: this machine has no NVIDIA device that this process may use"),
        ("num_gpus: 0\n", 0, "num_gpus: must be -1, or 1 or more"),
        ("num_gpus: 3\n", 2, "num_gpus: this machine has 2 devices, not 3"),
    ],
)
def test_ranks_that_cannot_be(ranks: Any, more: str, num_cuda: int, said: str) -> None:
    assert ranks(more, num_cuda)[1] == [said]


HOSTS = "b slots=2\na slots=4\n"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", [("b", (0, 1)), ("a", (0, 1, 2, 3))]),
        ("num_nodes: 1\n", [("b", (0, 1))]),
        ("num_gpus: 1\n", [("b", (0,)), ("a", (0,))]),
        ("include: a:3,1\n", [("a", (1, 3))]),
        ("exclude: a:0\n", [("b", (0, 1)), ("a", (1, 2, 3))]),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])  # of the hosts: this machine may have none
def test_ranks_of_a_hostfile(ranks: Any, tmp_path: Path, device: str, more: str, expected: list[Any]) -> None:
    (tmp_path / "hosts").write_text(HOSTS)
    shape, problems, plan = ranks(f"hostfile: {tmp_path}/hosts\ndevice: {device}\n{more}", 0)
    assert not problems
    assert [(host.name, host.devices) for host in plan.hosts] == expected
    assert shape.num_ranks == plan.world_size == sum(len(devices) for _, devices in expected)
    assert plan.master_addr == expected[0][0]
    assert shape.device == device


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("num_nodes: 3\n", "num_nodes: must be -1, or from 1 to 2, the number of hosts; not 3"),
        ("num_gpus: 3\n", "num_gpus: b has 2 slots, not 3"),
        ("include: c\n", "include: names host 'c', which is not one of b, a"),
        ("exclude: a:4\n", "exclude: names slot '4' of a, which has slots 0 to 3"),
    ],
)
def test_hosts_and_slots_that_are_not_there(ranks: Any, tmp_path: Path, more: str, said: str) -> None:
    (tmp_path / "hosts").write_text(HOSTS)
    assert ranks(f"hostfile: {tmp_path}/hosts\n{more}", 0)[1] == [said]


def test_a_hostfile_that_is_named_must_be_there(ranks: Any, tmp_path: Path) -> None:
    assert ranks(f"hostfile: {tmp_path}/none\n", 0)[1] == [
        f"hostfile: cannot read {tmp_path}/none: No such file or directory"
    ]
    assert ranks("hostfile: /job/hostfile\n", 0)[1] == []


def test_filters_without_a_hostfile_are_about_this_machine(ranks: Any) -> None:
    shape, problems, plan = ranks("include: localhost:0,2\n", 4)
    assert not problems
    assert (plan.hosts[0].devices, plan.master_addr, shape.num_ranks) == ((0, 2), "127.0.0.1", 2)
    assert ranks("num_nodes: 2\n", 4)[1] == ["num_nodes: must be -1, or from 1 to 1, the number of hosts; not 2"]


def test_where_the_ranks_meet(ranks: Any) -> None:
    plan = ranks("master_addr: 10.0.0.1\nmaster_port: 6000\nlocal_rank: 1\n", 0)[2]
    assert (plan.master_addr, plan.master_port, plan.local_rank) == ("10.0.0.1", 6000, 1)
    assert ranks("", 0)[2].local_rank is None


def test_cores_are_shared_out_on_a_cpu(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert ranks("num_gpus: 3\n", 0, 8)[2].threads_per_rank == 2
    assert ranks("num_gpus: 3\n", 0, 2)[2].threads_per_rank == 1
    assert ranks("", 1)[2].threads_per_rank is None


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("4,2", 4), ("", 2), ("0", 2), ("many", 2)])
def test_a_rank_has_the_threads_that_the_environment_asks_for(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, asked: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert ranks("num_gpus: 3\n", 0, 8)[2].threads_per_rank == threads
