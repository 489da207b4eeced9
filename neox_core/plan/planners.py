"""The planners of the architecture and the engine that a config chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neox_core.contracts.architecture import ArchitecturePlanner
from neox_core.contracts.engine import EnginePlanner
from neox_core.errors import PluginError
from neox_core.hooks.component import load_path

if TYPE_CHECKING:
    from neox_core.config.schema.structure import Config
    from neox_core.contracts.engine import Sharding
    from neox_core.hooks.registry import Entry

CONTRACTS: dict[str, type] = {"architecture": ArchitecturePlanner, "engine": EnginePlanner}


def architecture_planner(config: Config) -> ArchitecturePlanner:
    """Raises SectionInvalidError where no architecture could be chosen, PluginError for one without a whole planner."""
    (chosen,) = config.components("architecture")
    planner: ArchitecturePlanner = planner_of(chosen.entry)
    return planner


def engine_planner(config: Config) -> EnginePlanner:
    """Raises as `architecture_planner`."""
    (chosen,) = config.components("engine")
    planner: EnginePlanner = planner_of(chosen.entry)
    return planner


def objective_planner(config: Config) -> Any:
    """The planner of the objective, of which it may leave out everything; None without one. Raises as the others."""
    (chosen,) = config.components("objective")
    path = chosen.entry.component.planner
    return None if path is None else load_path(path)


def sharding(config: Config) -> Sharding:
    """What the engine of a config does with the model's state. Raises SectionInvalidError as `Config.section`."""
    return engine_planner(config).sharding(config)


def planner_of(entry: Entry) -> Any:
    """The planner of a component that must have one. Raises PluginError that names the plugin and what is missing."""
    path, contract = entry.require_planner(), CONTRACTS[entry.kind]
    planner = load_path(path)
    names = (name for name in (*contract.__annotations__, *vars(contract)) if not name.startswith("_"))
    if lacks := [name for name in names if not hasattr(planner, name)]:
        said = f"{entry.kind} {entry.qualified} {entry.plugin.version}: its planner {path} has no {', '.join(lacks)}"
        hint = f"tell the author of {entry.plugin.id}: docs/hooks.md has the contract {contract.__name__}"
        raise PluginError(said, hint=hint)
    return planner
