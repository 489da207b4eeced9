"""`neox elastic`: train on the ranks that there are, whatever their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import click

from neox_core.cli.notes import SETS
from neox_core.config.dialects import modernise
from neox_core.config.problem import MisfitError, Problem
from neox_core.config.read.load import load
from neox_core.config.report import ProblemsError, errors
from neox_core.config.schema.structure import Config, structure
from neox_core.errors import ConfigError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.assemble import run_dir
from neox_core.plan.cluster import cluster_shape, detect
from neox_core.plan.hosts import DEFAULT_HOSTFILE
from neox_elasticity.batch import BLOCK, faults, fitting
from neox_elasticity.members import Sizes, Slot, WholeHosts
from neox_elasticity.record import Record
from neox_elasticity.settings import ElasticityBlock, ElasticitySettings
from neox_elasticity.supervise import Elastic, Look

FILTERS = {"include": "", "exclude": "", "num_nodes": -1, "num_gpus": -1}
"""Keys that choose among the slots, and their defaults."""
OURS = ("hostfile", "include")
"""Keys that each `neox train` gets from this command."""
COUNTS = ("num_nodes", "num_gpus")
"""Which this command reads in their place."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@SETS
def elastic(files: tuple[Path, ...], sets: tuple[str, ...]) -> None:
    """Train the model that FILES describe on the slots of the hostfile, and continue by itself when they change.

    A rank that is killed, or a host that fails, ends the run at its last checkpoint; a hostfile that is written with
    other slots ends it after a step. Either way the run continues by itself from `save`: on the most slots that
    `elasticity` allows, or with `max-restarts` alone on as many as before, where hosts of the hostfile beyond
    `num-nodes` take the place of those that fail.
    """
    config = _read(files, sets)
    raise SystemExit(elastic_run("neox elastic", config, files, sets, Path(run_dir(config))).run())


def elastic_run(
    name: str, config: Config, files: Iterable[Path], sets: Iterable[str], folder: Path, resume: str | None = "auto"
) -> Elastic:
    """What starts a run of this config until it is done.

    name: of the command. folder: of the run. resume: how the first start resumes; all others continue from `save`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be written: {error.strerror}", hint="set another `save`"
        ) from error
    settings, sets = _settings(config), tuple(sets)
    listed = config
    if settings.elasticity.enabled:
        shape: Sizes | WholeHosts = _sizes(config, settings.elasticity)
    else:
        counts = COUNTS[:1] if _no_hostfile(config) else COUNTS  # `num_gpus` also says how many this machine has
        listed, sets = _read(files, _reset(sets, counts)), _reset(sets, COUNTS)
        shape = _whole_hosts(config, slots_of(listed))
    words = [*map(str, files), *(word for one in _without(sets, OURS) for word in ("--set", one))]
    words += ["--run-dir", str(folder)]
    least_s = settings.elasticity.min_time * 60.0
    return Elastic(words, slots_of(listed), shape, least_s, Record(folder), settings.max_restarts, name, resume)


def _reset(sets: Iterable[str], keys: Collection[str]) -> tuple[str, ...]:
    return (*_without(sets, keys), *(f"{key}=-1" for key in keys))


def _without(sets: Iterable[str], keys: Collection[str]) -> list[str]:
    return [one for one in sets if one.partition("=")[0].strip().replace("-", "_") not in keys]


def _sizes(config: Config, block: ElasticityBlock) -> Sizes:
    for key, default in FILTERS.items():
        if config.value(key) != default:
            raise _refused(config, "contradicts `neox elastic`, which chooses among the slots", key, "remove it")
    for fault in faults(block):
        raise _refused(config, fault.message, fault.key, fault.hint)
    try:
        copies = fitting(block).copies
    except MisfitError as misfit:
        raise _refused(config, misfit.message, misfit.key, misfit.hint) from None
    each = config.value("model_parallel_size") * max(1, config.value("pipe_parallel_size"))
    return Sizes([count * each for count in copies])


def _whole_hosts(config: Config, look: Look) -> WholeHosts:
    """As many hosts as the config asks for, with as many slots each; all others of the hostfile are spare."""
    for key in ("include", "exclude"):
        if config.value(key):
            hint = "write the hosts into the hostfile in the order of use, and `num-nodes`"
            raise _refused(config, "contradicts max-restarts, which chooses among the hosts", key, hint)
    slots = Counter(host for host, _ in look()[1])
    count, each = config.value("num_nodes"), config.value("num_gpus")
    if count > len(slots):
        raise _refused(config, f"must be -1, or from 1 to {len(slots)}, the number of hosts", "num_nodes", "")
    if each < 1 and len(set(slots.values())) > 1:
        raise _refused(config, "is required where the hosts have different numbers of slots", "num_gpus", "set it")
    if 0 < count < len(slots) and config.value("master_addr") is not None:
        raise _refused(config, "is the address of one host, which a spare host may replace", "master_addr", "remove it")
    return WholeHosts(count if count > 0 else len(slots), each if each > 0 else min(slots.values()))


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


def _no_hostfile(config: Config) -> bool:
    """Whether the hosts are this machine, or those of an allocation."""
    return config.value("hostfile") == DEFAULT_HOSTFILE and not Path(DEFAULT_HOSTFILE).exists()


def _read(files: Iterable[Path], sets: Iterable[str]) -> Config:
    catalog = load_plugins()
    loaded = modernise(load(tuple(files), tuple(sets)), catalog.registry)
    config, found = structure(loaded, catalog)
    if errors([*loaded.problems, *found]):
        raise ProblemsError([*loaded.problems, *found])
    return config


def _settings(config: Config) -> ElasticitySettings:
    """Those of the config. Raises ConfigError for what `neox elastic` cannot do with the config."""
    chosen = [each for each in config.components("callback") if each.entry.component.name == BLOCK]
    if not chosen:
        raise _refused(config, "is required by `neox elastic`", f"{BLOCK}.enabled", "set it to true, or max-restarts")
    if config.value("save") is None:
        raise _refused(config, "is required by `neox elastic`", "save", "runs continue from their checkpoints")
    settings: ElasticitySettings = chosen[0].settings
    return settings


def _refused(config: Any, message: str, key: str, hint: str) -> ProblemsError:
    return ProblemsError([config.problem(message, key, hint)])
