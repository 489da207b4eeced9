"""Where a run happens, which monitors it reports to, and which plugins it needs."""

from typing import Any, Literal

from attrs import frozen

from neox_core.config.schema.checks import at_least, between, distinct, not_empty
from neox_core.config.schema.setting import setting


def _speed(default: Any, *, help: str, **more: Any) -> Any:
    """A setting of DeepSpeed's launcher."""
    return setting(default, help=help, changes="speed", origin="deepspeed", **more)


@frozen
class LaunchSection:
    """Which devices a run uses, and how its processes connect."""

    launcher: str = _speed("local", help="What starts the processes.")
    hostfile: str = _speed(
        "/job/hostfile",
        help="List of machines, a line `NAME slots=N` each. Without a file of the default name: this machine only.",
        check=not_empty,
    )
    include: str = _speed(
        "", help="Hosts and slots to run on, such as worker-0@worker-1:0,2. Default: all of the hostfile."
    )
    exclude: str = _speed("", help="Hosts and slots to leave out, written as in `include`.")
    num_nodes: int = _speed(
        -1, help="Hosts to take from the top of the hostfile; -1: all.", check=between(-1, 100_000), unit="hosts"
    )
    num_gpus: int = _speed(
        -1,
        help="Processes on each host, one a device; -1: all devices, and one process on a machine without.",
        check=between(-1, 1024),
        aliases=("num_accelerators",),
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", help="Kind of device; auto: cuda where this machine has one, else cpu.", changes="speed"
    )
    distributed_backend: Literal["nccl", "gloo"] | None = setting(
        None,
        help="Communication library. Default: nccl on cuda, gloo on cpu, also where mpirun starts the ranks.",
        changes="speed",
        origin="megatron",
    )
    master_addr: str | None = _speed(
        None,
        help="Address of the first process. Default: the first host, and 127.0.0.1 on one machine.",
        check=not_empty,
    )
    master_port: int = _speed(29500, help="Port of the first process.", check=between(1, 65535))
    detect_nvlink_pairs: bool = setting(
        False,
        help="Order the devices of each host so that the two ranks that share layers share an NVLink.",
        changes="speed",
        origin="gpt-neox",
    )
    stall_timeout: int = setting(
        300,
        help="Time without progress of a rank after which the run ends and names it; six times as long in the first "
        "step, in an evaluation and while a checkpoint is written. 0: only the limit of a collective, 30 minutes.",
        unit="s",
        check=at_least(0),
        changes="output",
    )
    local_rank: int | None = setting(
        None,
        help="Device of a rank that is started by hand, without LOCAL_RANK in its environment.",
        check=at_least(0),
        changes="speed",
        origin="megatron",
    )


@frozen
class ReportSection:
    """Where a run reports its progress, and what takes part in it beside its steps."""

    monitors: tuple[str, ...] = setting(
        ("console", "jsonl"), help="Monitors, by name.", check=distinct, changes="output"
    )
    callbacks: tuple[str, ...] = setting(
        (), help="What acts at events of the run, by name, in this order.", check=distinct, changes="output"
    )
    evaluators: tuple[str, ...] = setting(
        (), help="What measures the model at evaluations, by name.", check=distinct, changes="output"
    )


@frozen
class PluginsBlock:
    """What a config requires of the installation."""

    require: tuple[str, ...] = setting(
        (), help="Plugins, by distribution name, without which the run must not start.", changes="output"
    )


@frozen
class PluginsSection:
    """Requirements on plugins."""

    plugins: PluginsBlock = setting(PluginsBlock(), help="Block of requirements on plugins.", changes="output")
