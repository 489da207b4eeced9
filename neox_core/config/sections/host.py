"""Where a run happens, to whom it reports, and which plugins it needs."""

from typing import Literal

from attrs import frozen

from neox_core.config.checks import at_least, between, distinct, not_empty
from neox_core.config.setting import setting


@frozen
class LaunchSection:
    """Which devices take part, and how the processes meet."""

    launcher: str = setting("local", help="What starts the processes.", changes="speed", origin="deepspeed")
    hostfile: str = setting(
        "/job/hostfile",
        help="List of machines, a line `NAME slots=N` each. Without the file of the default name: this machine only.",
        check=not_empty,
        changes="speed",
        origin="deepspeed",
    )
    include: str = setting(
        "",
        help="Hosts and slots to run on, such as worker-0@worker-1:0,2. Default: all of the hostfile.",
        changes="speed",
        origin="deepspeed",
    )
    exclude: str = setting(
        "", help="Hosts and slots to leave out, written as in `include`.", changes="speed", origin="deepspeed"
    )
    num_nodes: int = setting(
        -1,
        help="Hosts to take from the top of the hostfile; -1: all.",
        check=between(-1, 100_000),
        unit="hosts",
        changes="speed",
        origin="deepspeed",
    )
    num_gpus: int = setting(
        -1,
        help="Processes on each host, one a device; -1: all devices, and one process on a machine without.",
        check=between(-1, 1024),
        aliases=("num_accelerators",),
        changes="speed",
        origin="deepspeed",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", help="Kind of device; auto: cuda where this machine has one, else cpu.", changes="speed"
    )
    distributed_backend: Literal["nccl", "gloo", "mpi"] | None = setting(
        None, help="Communication library. Default: nccl on cuda, gloo on cpu.", changes="speed", origin="megatron"
    )
    master_addr: str | None = setting(
        None,
        help="Address of the first process. Default: the first host, and 127.0.0.1 on one machine.",
        check=not_empty,
        changes="speed",
        origin="deepspeed",
    )
    master_port: int = setting(
        29500, help="Port of the first process.", check=between(1, 65535), changes="speed", origin="deepspeed"
    )
    detect_nvlink_pairs: bool = setting(
        False,
        help="Order the devices of each host so that the two ranks that share layers share an NVLink.",
        changes="speed",
        origin="gpt-neox",
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
    """Who is told how the run goes."""

    monitors: tuple[str, ...] = setting(
        ("console", "jsonl"), help="Monitors, by name.", check=distinct, changes="output"
    )


@frozen
class PluginsBlock:
    """What a config expects of the installation."""

    require: tuple[str, ...] = setting(
        (), help="Plugins, by distribution name, without which the run must not start.", changes="output"
    )


@frozen
class PluginsSection:
    """Expectations on plugins."""

    plugins: PluginsBlock = setting(PluginsBlock(), help="Block of expectations on plugins.", changes="output")
