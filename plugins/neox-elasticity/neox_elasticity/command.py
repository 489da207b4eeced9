"""`neox elastic`: train on the ranks that there are, whatever their number."""

from __future__ import annotations

from collections.abc import Callable
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
from neox_elasticity.batch import BLOCK, faults, fitting
from neox_elasticity.members import Slot
from neox_elasticity.record import Record
from neox_elasticity.settings import ElasticityBlock
from neox_elasticity.supervise import Elastic

FILTERS = {"include": "", "exclude": "", "num_nodes": -1, "num_gpus": -1}
"""Keys that choose among the slots, and their defaults."""
OURS = ("hostfile", "include")
"""Keys that each `neox train` gets from this command."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@SETS
def elastic(files: tuple[Path, ...], sets: tuple[str, ...]) -> None:
    """Train the model that FILES describe on the slots of the hostfile, and continue by itself when they change.

    A rank that is killed, or a host that fails, ends the run at its last checkpoint; a hostfile that is written with
    other slots ends it after a step. Either way the run continues on the most slots that `elasticity` allows. It
    always continues from `save`.
    """
    config = _read(files, sets)
    block = _block(config)
    for fault in faults(block):
        raise _refused(config, fault.message, fault.key, fault.hint)
    try:
        copies = fitting(block).copies
    except MisfitError as misfit:
        raise _refused(config, misfit.message, misfit.key, misfit.hint) from None
    each = config.value("model_parallel_size") * max(1, config.value("pipe_parallel_size"))
    kept = (one for one in sets if one.partition("=")[0].strip() not in OURS)
    words = [*map(str, files), *(word for one in kept for word in ("--set", one))]
    folder = Path(run_dir(config))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be written: {error.strerror}", hint="set another `save`"
        ) from error
    sizes = [count * each for count in copies]
    run = Elastic(words, slots_of(config), sizes, block.min_time * 60.0, Record(folder))
    raise SystemExit(run.run())


def slots_of(config: Config) -> Callable[[], tuple[object, tuple[Slot, ...]]]:
    """What looks at the hostfile of a config: what changes when it is written, and its slots."""
    path, machine = Path(config.value("hostfile")), detect()

    def look() -> tuple[object, tuple[Slot, ...]]:
        try:
            found = path.stat()
        except OSError as error:
            hint = "write lines such as: worker-0 slots=4"
            raise ConfigError(f"cannot read the hostfile {path}: {error.strerror}", hint=hint) from error
        problems: list[Problem] = []
        shape = cluster_shape(config, machine, problems)
        if errors(problems):
            raise ProblemsError(problems)
        slots = tuple((host.name, slot) for host in shape.hosts for slot in host.devices)
        return (found.st_mtime_ns, found.st_size, found.st_ino), slots

    return look


def _read(files: tuple[Path, ...], sets: tuple[str, ...]) -> Config:
    catalog = load_plugins()
    loaded = modernise(load(files, sets), catalog.registry)
    config, found = structure(loaded, catalog)
    if errors([*loaded.problems, *found]):
        raise ProblemsError([*loaded.problems, *found])
    return config


def _block(config: Config) -> ElasticityBlock:
    """The block of the config. Raises ConfigError for what `neox elastic` cannot do with the config."""
    chosen = [each for each in config.components("callback") if each.entry.component.name == BLOCK]
    if not chosen:
        raise _refused(config, "is required by `neox elastic`", f"{BLOCK}.enabled", "set it to true")
    if config.value("save") is None:
        raise _refused(config, "is required by `neox elastic`", "save", "runs continue from their checkpoints")
    for key, default in FILTERS.items():
        if config.value(key) != default:
            raise _refused(config, "contradicts `neox elastic`, which chooses among the slots", key, "remove it")
    block: ElasticityBlock = chosen[0].settings.elasticity
    return block


def _refused(config: Any, message: str, key: str, hint: str) -> ProblemsError:
    return ProblemsError([config.problem(message, key, hint)])
