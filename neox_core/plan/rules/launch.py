"""Rules of where a run happens."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.host import LaunchSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule


@rule("include", "exclude")
def one_host_filter(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Either include or exclude selects hosts, not both."""
    launch = config.section(LaunchSection)
    if launch.include and launch.exclude:
        yield config.problem("contradicts include", "exclude", "keep one of the two")


@rule("include", "exclude", "num_nodes", "num_gpus")
def filter_or_count(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Hosts are selected by name or by number, not by both."""
    launch = config.section(LaunchSection)
    for key in ("num_nodes", "num_gpus"):
        if (launch.include or launch.exclude) and getattr(launch, key) != -1:
            chooser = "include" if launch.include else "exclude"
            yield config.problem(f"contradicts {chooser}, which selects by name", key, "keep one of the two")


@rule("detect_nvlink_pairs", "model_parallel_size", "device")
def nvlink_pairs_share_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """detect_nvlink_pairs needs NVIDIA devices and two ranks that share layers."""
    if not config.section(LaunchSection).detect_nvlink_pairs:
        return
    tensor = config.section(ParallelismSection).model_parallel_size
    if shape.device != "cuda":
        yield config.problem("is for NVIDIA devices, and this run is on the CPU", "detect_nvlink_pairs")
    elif tensor != 2:
        yield config.problem(f"is for model-parallel-size 2, not {tensor}", "detect_nvlink_pairs", "remove it")
