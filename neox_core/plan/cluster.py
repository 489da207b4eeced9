"""Which devices this machine has and how many ranks a config makes of them. Looks at files, never at torch."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from attrs import frozen

from neox_core.config.problem import Problem
from neox_core.config.sections.host import LaunchSection
from neox_core.config.structure import Config
from neox_core.plan.runfile import ClusterPlan, Host

Device = Literal["cpu", "cuda"]


@frozen
class Machine:
    """This machine: NVIDIA devices that may be used, and cores that this process may use."""

    num_cuda: int
    num_cores: int


@frozen
class ClusterShape:
    """The ranks of a run, and on what."""

    device: Device
    num_ranks: int
    backend: str
    num_cores: int


def detect(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> Machine:
    """Count NVIDIA devices by /dev/nvidia<N>, else by /proc/driver/nvidia/gpus, within CUDA_VISIBLE_DEVICES."""
    env = os.environ if env is None else env
    present = len(_entries(root / "dev", r"nvidia\d+")) or len(_entries(root / "proc/driver/nvidia/gpus", r".+"))
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        present = min(present, _visible(visible))
    return Machine(present, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _entries(folder: Path, pattern: str) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []


def _visible(text: str) -> int:
    """CUDA reads the list up to its first entry that is no device, such as -1."""
    count = 0
    for name in map(str.strip, text.split(",")):
        if not name or name.startswith("-"):
            break
        count += 1
    return count


def cluster_shape(config: Config, machine: Machine, problems: list[Problem]) -> ClusterShape:
    """The ranks that the launch section asks for on this machine. Problems are appended; the shape is then a guess."""
    launch = config.section(LaunchSection)
    device: Device = "cuda" if launch.device == "cuda" or (launch.device == "auto" and machine.num_cuda) else "cpu"
    if launch.device == "cuda" and not machine.num_cuda:
        problems.append(config.problem("this machine has no NVIDIA device that may be used", "device", "device: auto"))
    present = machine.num_cuda if device == "cuda" else 1
    num_ranks = max(1, present) if launch.num_gpus == -1 else launch.num_gpus
    if num_ranks == 0:
        problems.append(config.problem("must be -1, or 1 or more", "num-gpus"))
    elif device == "cuda" and machine.num_cuda and num_ranks > machine.num_cuda:
        problems.append(config.problem(f"this machine has {machine.num_cuda} devices, not {num_ranks}", "num-gpus"))
    backend = launch.distributed_backend or ("nccl" if device == "cuda" else "gloo")
    if backend == "nccl" and device == "cpu":
        problems.append(
            config.problem("nccl needs NVIDIA devices, and this run is on the CPU", "distributed-backend", "gloo")
        )
    if backend == "mpi":
        problems.append(
            config.problem("mpi is known, but not available in this version yet", "distributed-backend", "nccl or gloo")
        )
    return ClusterShape(device, max(1, num_ranks), backend, machine.num_cores)


def cluster_plan(config: Config, shape: ClusterShape) -> ClusterPlan:
    """One host, this one."""
    launch = config.section(LaunchSection)
    threads = max(1, shape.num_cores // shape.num_ranks) if shape.device == "cpu" else None
    return ClusterPlan(
        hosts=(Host("localhost", shape.num_ranks),),
        device=shape.device,
        backend=shape.backend,
        master_addr=launch.master_addr or "127.0.0.1",
        master_port=launch.master_port,
        threads_per_rank=threads,
    )
