"""Rules of where a run happens."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.sections.host import LaunchSection
from neox_core.config.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule


@rule("include", "exclude")
def one_host_filter(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Hosts are chosen by what is in or by what is out, not by both."""
    launch = config.section(LaunchSection)
    if launch.include and launch.exclude:
        yield config.problem("contradicts include", "exclude", "keep one of the two")


@rule("include", "exclude", "num_nodes", "num_gpus")
def filter_or_count(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Hosts are chosen by name or by number, not by both."""
    launch = config.section(LaunchSection)
    for key in ("num_nodes", "num_gpus"):
        if (launch.include or launch.exclude) and getattr(launch, key) != -1:
            chooser = "include" if launch.include else "exclude"
            yield config.problem(f"contradicts {chooser}, which says it by name", key, "keep one of the two")


RULES: tuple[Rule, ...] = (
    one_host_filter,
    filter_or_count,
)
