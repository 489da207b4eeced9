"""Rules between keys: each a small function that yields problems. A rule whose section is invalid is skipped."""

from collections.abc import Iterator
from typing import Any

import attrs
from attrs import evolve

from neox_core.config.problem import Problem
from neox_core.config.schema.checks import at_rest
from neox_core.config.schema.convert import fields_of, join
from neox_core.config.schema.structure import Config, SectionInvalidError
from neox_core.errors import PluginError
from neox_core.hooks.catalog import Catalog
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import architecture_planner, engine_planner, objective_planner
from neox_core.plan.rules import checkpoint, components, data, idle, launch, optimization, parallelism, schedule
from neox_core.plan.rules.rule import Rule, rules_in

AREAS = (parallelism, optimization, checkpoint, data, schedule, components, launch, idle)
RULES: tuple[Rule, ...] = tuple(each for area in AREAS for each in rules_in(area))


def check_rules(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """All that the core's rules find."""
    for each in (*RULES, *_of_components(config)):
        try:
            yield from each(config, shape)
        except SectionInvalidError:
            continue


def _of_components(config: Config) -> Iterator[Rule]:
    """The rules of the architecture, the engine and the objective that the config chooses."""
    for planner in (architecture_planner, engine_planner, objective_planner):
        try:
            yield from getattr(planner(config), "rules", ())
        except SectionInvalidError:
            continue


def unread_keys(config: Config, ledger: set[str], catalog: Catalog) -> Iterator[Problem]:
    """Keys of sections that are set and that neither the plan nor a rule has read; called once the plan is made.

    Settings of components are not included: run.json holds them.
    """
    for cls in config.sections:
        for path in _unread(config.sections[cls], "", config, ledger):
            owners = {section.settings: plugin for plugin, section in catalog.registry.sections}
            owners |= {section.settings: entry.plugin for entry, section in catalog.registry.sections_of_components()}
            plugin = owners.get(cls)  # looked up only here, since the look imports the sections of every component
            if plugin is None:
                yield config.problem("nothing reads it", path, "remove it, and tell the authors of neox-core")
            else:
                hint = f"remove it, or tell the author of {plugin.id}: settings for a rank belong to a component"
                problem = config.problem(f"nothing reads it in {plugin.id} {plugin.version}", path, hint)
                yield evolve(problem, exit_code=PluginError.exit_code)


def _unread(settings: Any, block: str, config: Config, ledger: set[str]) -> Iterator[str]:
    """The unread keys of a section or a block; a block that is switched off has none."""
    cls: type = type(settings)
    for each in fields_of(cls):
        path, value = join(block, each.name), getattr(settings, each.name)
        if attrs.has(type(value)):
            if getattr(value, "enabled", True):
                yield from _unread(value, path, config, ledger)
        elif config.is_set(path) and path not in ledger and not at_rest(each.attribute.validator):
            yield path
