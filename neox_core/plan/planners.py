"""The planners of the architecture and the engine that a config chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neox_core.hooks.component import load_path

if TYPE_CHECKING:
    from neox_core.config.schema.structure import Config
    from neox_core.contracts.architecture import ArchitecturePlanner
    from neox_core.contracts.engine import EnginePlanner, Sharding
    from neox_core.hooks.registry import Entry


def architecture_planner(config: Config) -> ArchitecturePlanner:
    """Raises SectionInvalidError where no architecture could be chosen, PluginError for one that has no planner."""
    (chosen,) = config.components("architecture")
    planner: ArchitecturePlanner = planner_of(chosen.entry)
    return planner


def engine_planner(config: Config) -> EnginePlanner:
    """Raises as `architecture_planner`."""
    (chosen,) = config.components("engine")
    planner: EnginePlanner = planner_of(chosen.entry)
    return planner


def sharding(config: Config) -> Sharding:
    """What the engine of a config does with the model's state. Raises SectionInvalidError as `Config.section`."""
    return engine_planner(config).sharding(config)


def planner_of(entry: Entry) -> Any:
    """The planner of a component that must have one. Raises PluginError naming the plugin."""
    return load_path(entry.require_planner())
