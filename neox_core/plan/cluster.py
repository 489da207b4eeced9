"""The devices of this machine, and the ranks that a config puts on them or on a hostfile's. Does not import torch."""

import os
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Literal

from attrs import evolve, frozen

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.sections.host import LaunchSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.training import BatchSection
from neox_core.config.schema.structure import Config
from neox_core.errors import UsageError
from neox_core.plan.batch import solve_batch
from neox_core.plan.hosts import DEFAULT_HOSTFILE, Pool, exclude, first, include, name_of, read_hostfile
from neox_core.plan.runfile import BatchPlan, ClusterPlan, Host

Device = Literal["cpu", "cuda"]


@frozen
class Machine:
    """This machine: the NVIDIA devices and the cores that this process may use."""

    num_cuda: int
    num_cores: int


@frozen
class ClusterShape:
    """The ranks of a run and their devices. `hosts` is in the order of the ranks."""

    device: Device
    num_ranks: int
    backend: str
    num_cores: int
    hosts: tuple[Host, ...] = ()

    def data_parallel(self, config: Config) -> int:
        """Copies of the model, 1 or more."""
        return data_parallel(config, self)

    def batch(self, config: Config) -> BatchPlan:
        """The batch sizes, in samples: of a callback's planner, else by the config's. Raises MisfitError."""
        copies = self.data_parallel(config)
        deciding = [each for each in config.components("callback") if each.entry.component.planner]
        if len(deciding) > 1:
            names = " and ".join(each.entry.component.name for each in deciding)
            raise MisfitError(f"{names} each decide the batch", "callbacks", "keep one of them")
        for chosen in deciding:
            plan: BatchPlan | None = chosen.told(BatchPlan, chosen.settings, self.num_ranks, copies)
            if plan is not None:
                return plan
        sizes = config.section(BatchSection)
        found = solve_batch(
            sizes.train_batch_size, sizes.train_micro_batch_size_per_gpu, sizes.gradient_accumulation_steps, copies
        )
        return evolve(found, ramp=sizes.rampup_batch_size)


def detect(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> Machine:
    """Count NVIDIA devices by /dev/nvidia<N>, else by /proc/driver/nvidia/gpus, within CUDA_VISIBLE_DEVICES."""
    env = os.environ if env is None else env
    present = len(_entries(root / "dev", r"nvidia\d+")) or len(_entries(root / "proc/driver/nvidia/gpus", r".+"))
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = takewhile(lambda name: name and name[0] != "-", map(str.strip, visible.split(",")))
        present = min(present, sum(1 for _ in named))  # CUDA reads them up to one such as -1
    return Machine(present, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _entries(folder: Path, pattern: str) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []


def imagined(text: str) -> tuple[Machine, Pool]:
    """For "12x8": a machine with 8 GPUs and 12 such hosts. Raises UsageError for anything else."""
    counts = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,2})", text)
    if counts is None:
        raise UsageError(f"a cluster is written HOSTSxGPUS, such as 12x8, at most 99999x999, not {text!r}")
    num_hosts, num_gpus = map(int, counts.groups())
    return Machine(num_gpus, num_gpus), {f"host-{index}": tuple(range(num_gpus)) for index in range(num_hosts)}


def cluster_shape(
    config: Config, machine: Machine, problems: list[Problem], imagined: Pool | None = None
) -> ClusterShape:
    """The ranks that the launch section asks for. Appends problems to `problems`; the shape is then a guess.

    imagined: hosts to take instead of the hostfile's and this machine, whatever their names in the config.
    """
    launch = config.section(LaunchSection)
    device: Device = "cuda" if launch.device == "cuda" or (launch.device == "auto" and machine.num_cuda) else "cpu"
    pool, faults = _hostfile(launch) if imagined is None else (imagined, [])
    config.note("hostfile")  # also where other hosts replace it
    problems += [each if each.where else config.problem(each.message, each.key, each.hint) for each in faults]
    asked = [] if pool or faults else [each for each in config.components("launcher") if each.entry.component.planner]
    try:
        for chosen in asked:  # which knows the hosts of an allocation
            pool = chosen.told(Mapping, device, launch.num_gpus)
    except MisfitError as error:
        problems.append(config.problem(error.message, error.key, error.hint))
    if not pool:
        if launch.device == "cuda" and not machine.num_cuda:
            problems.append(
                config.problem("this machine has no NVIDIA device that this process may use", "device", "device: auto")
            )
        pool = _this_machine(config, launch, device, machine, problems)
    try:
        pool = _wanted(launch, pool) if imagined is None else first(pool, launch.num_nodes, launch.num_gpus)
    except MisfitError as error:
        problems.append(config.problem(error.message, error.key, error.hint))
    backend = launch.distributed_backend or ("nccl" if device == "cuda" else "gloo")
    if backend == "nccl" and device == "cpu":
        problems.append(
            config.problem("nccl needs NVIDIA devices, and this run is on the CPU", "distributed-backend", "gloo")
        )
    hosts = tuple(Host(name, len(slots), slots) for name, slots in pool.items())
    return ClusterShape(device, sum(host.slots for host in hosts), backend, machine.num_cores, hosts)


def _hostfile(launch: LaunchSection) -> tuple[Pool, list[Problem]]:
    """The hosts of the hostfile; none where the config names none and no file has the default name."""
    path = Path(launch.hostfile)
    if launch.hostfile == DEFAULT_HOSTFILE and not path.exists():
        return {}, []
    return read_hostfile(path)


def _this_machine(
    config: Config, launch: LaunchSection, device: Device, machine: Machine, problems: list[Problem]
) -> Pool:
    """This machine's devices; without devices, the number of CPU processes that the config asks for."""
    present = machine.num_cuda if device == "cuda" else max(1, launch.num_gpus)
    if launch.num_gpus == 0:
        problems.append(config.problem("must be -1, or 1 or more", "num-gpus"))
    elif launch.num_gpus > present and machine.num_cuda:
        problems.append(config.problem(f"this machine has {present} devices, not {launch.num_gpus}", "num-gpus"))
    return {"localhost": tuple(range(max(1, present, launch.num_gpus)))}


def _wanted(launch: LaunchSection, pool: Pool) -> Pool:
    """The devices that the filters or the counts leave. The rules refuse two filters, or a filter with a count."""
    if launch.include:
        return include(pool, launch.include)
    if launch.exclude:
        return exclude(pool, launch.exclude)
    return first(pool, launch.num_nodes, launch.num_gpus)


def data_parallel(config: Config, shape: ClusterShape) -> int:
    """Copies of the model: ranks / (model-parallel-size x pipeline stages), at least 1; a rule checks the division."""
    return max(1, shape.num_ranks // config.section(ParallelismSection).ranks_of_a_copy)


def cluster_plan(config: Config, shape: ClusterShape) -> ClusterPlan:
    """Where the ranks run, and how they find each other."""
    launch, parallel = config.section(LaunchSection), config.section(ParallelismSection)
    most = max(host.slots for host in shape.hosts)
    names = [name_of(host.name) for host in shape.hosts]
    return ClusterPlan(
        hosts=shape.hosts,
        device=shape.device,
        backend=shape.backend,
        master_addr=launch.master_addr or ("127.0.0.1" if names == ["localhost"] else names[0]),
        master_port=launch.master_port,
        threads_per_rank=_threads(shape.num_cores // most) if shape.device == "cpu" else None,
        local_rank=launch.local_rank,
        nvlink_pairs=launch.detect_nvlink_pairs,
        tensor_parallel=parallel.model_parallel_size,
        pipeline_parallel=parallel.stages,
        sequence_parallel=parallel.sequence_parallel,
        partition=parallel.pipe_partition_method,
    )


def _threads(share: int) -> int:
    """Of a rank on a CPU: those that the environment asks for, else its share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # the others are of nested regions
    return int(asked) if asked.isdecimal() and int(asked) else max(1, share)
