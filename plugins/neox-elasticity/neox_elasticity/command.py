"""`neox elastic`: train on the ranks that there are, whatever their number."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import click

from neox_core.cli.notes import SETS
from neox_core.config.dialects import modernise
from neox_core.config.problem import MisfitError
from neox_core.config.read.load import load
from neox_core.config.report import ProblemsError, errors
from neox_core.config.schema.structure import Config, structure
from neox_core.errors import ConfigError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.assemble import run_dir
from neox_elasticity.batch import BLOCK, faults, fitting
from neox_elasticity.listed import COUNTS, FILTERS, all_hosts, slots_of, whole_hosts
from neox_elasticity.members import Sizes, WholeHosts
from neox_elasticity.record import Record
from neox_elasticity.settings import ElasticityBlock, ElasticitySettings
from neox_elasticity.supervise import Elastic

OURS = ("hostfile", "include")
"""Keys that each `neox train` gets from this command."""


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
        listed, sets = all_hosts(config), (*_without(sets, COUNTS), *(f"{key}=-1" for key in COUNTS))
        shape, found = whole_hosts(config, listed)
        if found:
            raise ProblemsError(found)
        slots_of(config)()  # raises what the core has against the counts
    words = [*map(str, files), *(word for one in _without(sets, OURS) for word in ("--set", one))]
    words += ["--run-dir", str(folder)]
    least_s = settings.elasticity.min_time * 60.0
    return Elastic(words, slots_of(listed), shape, least_s, Record(folder), settings.max_restarts, name, resume)


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
