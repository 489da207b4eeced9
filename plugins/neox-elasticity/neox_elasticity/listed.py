"""The slots of the hostfile, and the hosts of a run that starts again with as many ranks. Light."""

from collections import Counter
from pathlib import Path
from typing import Any

from attrs import evolve

from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, errors
from neox_core.config.schema.sections.host import LaunchSection
from neox_core.config.schema.structure import Config
from neox_core.errors import ConfigError
from neox_core.plan.cluster import cluster_shape, detect
from neox_core.plan.hosts import DEFAULT_HOSTFILE
from neox_elasticity.members import Look, Slot, WholeHosts

FILTERS = {"include": "", "exclude": "", "num_nodes": -1, "num_gpus": -1}
"""Keys that choose among the slots, and their defaults."""
COUNTS = ("num_nodes", "num_gpus")
"""Keys that say how many of the hosts and slots a run takes."""


def slots_of(config: Config) -> Look:
    """What looks at the hostfile of a config: what changes when it is written, and its slots."""
    path, machine = Path(config.value("hostfile")), detect()
    without = _no_hostfile(config)

    def look() -> tuple[object, tuple[Slot, ...]]:
        try:
            found = None if without else path.stat()
        except OSError as error:
            hint = "write lines such as: worker-0 slots=4"
            raise ConfigError(f"cannot read the hostfile {path}: {error.strerror}", hint=hint) from error
        problems: list[Problem] = []
        shape = cluster_shape(config, machine, problems)
        if errors(problems):
            raise ProblemsError(problems)
        slots = tuple((host.name, slot) for host in shape.hosts for slot in host.devices)
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found else "no hostfile", slots

    return look


def all_hosts(config: Config) -> Config:
    """The same config on all hosts and slots, of which the spare ones are a part."""
    launch = config.section(LaunchSection)
    each = launch.num_gpus if _no_hostfile(config) else -1  # which also says how many this machine has
    launch = evolve(launch, include="", exclude="", num_nodes=-1, num_gpus=each)
    return evolve(config, sections={**config.sections, LaunchSection: launch})


def whole_hosts(config: Any, listed: Config) -> tuple[WholeHosts, list[Problem]]:
    """As many hosts as the config asks for, with as many slots each; all others of `listed` are spare."""
    slots, problems = Counter(host for host, _ in slots_of(listed)()[1]), []
    for key in ("include", "exclude"):
        if config.value(key):
            hint = "write the hosts into the hostfile in the order of use, and `num-nodes`"
            problems.append(config.problem("contradicts max-restarts, which chooses among the hosts", key, hint))
    count, each = config.value("num_nodes"), config.value("num_gpus")
    if each < 1 and len(set(slots.values())) > 1:
        problems.append(
            config.problem("is required where the hosts have different numbers of slots", "num_gpus", "set it")
        )
    if 0 < count < len(slots) and config.value("master_addr") is not None:
        message = "is the address of one host, which a spare host may replace"
        problems.append(config.problem(message, "master_addr", "remove it"))
    shape = WholeHosts(count if count > 0 else len(slots), each if each > 0 else min(slots.values()))
    return shape, problems


def _no_hostfile(config: Config) -> bool:
    """Whether the hosts are this machine, or those of an allocation."""
    return config.value("hostfile") == DEFAULT_HOSTFILE and not Path(DEFAULT_HOSTFILE).exists()
