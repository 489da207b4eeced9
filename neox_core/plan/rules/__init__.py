"""Rules between keys: each a small function that yields problems. A rule whose section is invalid is skipped."""

from collections.abc import Iterator
from typing import Any

import attrs

from neox_core.config.problem import Problem
from neox_core.config.schema.checks import at_rest
from neox_core.config.schema.convert import fields_of, join
from neox_core.config.schema.structure import Config, SectionInvalidError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.registry import PluginInfo, Registry
from neox_core.ledger import Ledger
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import architecture_planner, engine_planner, planner_of
from neox_core.plan.rules import (
    batch,
    checkpoint,
    components,
    data,
    idle,
    launch,
    monitors,
    optimization,
    parallelism,
    schedule,
)
from neox_core.plan.rules.rule import Rule, keys_of, rules_in

RULES: tuple[Rule, ...] = tuple(
    each
    for area in (
        parallelism,
        batch,
        optimization,
        checkpoint,
        data,
        schedule,
        components,
        monitors,
        launch,
        idle,
    )
    for each in rules_in(area)
)


def all_rules(registry: Registry) -> tuple[Rule, ...]:
    """The rules of the core, then those of every architecture and engine."""
    entries = (each for each in registry.entries() if each.definition.plans)
    return tuple(dict.fromkeys((*RULES, *(rule for each in entries for rule in planner_of(each).rules))))


def rules_about(key: str, registry: Registry) -> tuple[tuple[str, str], ...]:
    """(name, what it says) of the rules of the core, of architectures and of engines that concern a dotted key written
    with `_`, or keys of its block.
    """
    choosing = tuple(kind.key for kind in registry.kinds_of_plugins() if kind.key and kind.used)
    more = {components.components_have_libraries: choosing}
    return tuple(
        (each.__name__, (each.__doc__ or "").strip())
        for each in all_rules(registry)
        if any(mine == key or mine.startswith(f"{key}.") for mine in (*keys_of(each), *more.get(each, ())))
    )


def check_rules(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """All that the core's rules find."""
    for each in (*RULES, *_of_components(config)):
        try:
            yield from each(config, shape)
        except SectionInvalidError:
            continue


def _of_components(config: Config) -> Iterator[Rule]:
    """The rules of the architecture and the engine that the config chooses."""
    for planner in (architecture_planner, engine_planner):
        try:
            yield from planner(config).rules
        except SectionInvalidError:
            continue


def unread_keys(config: Config, ledger: Ledger, catalog: Catalog) -> Iterator[tuple[Problem, PluginInfo | None]]:
    """Keys of sections that are set and that neither the plan nor a rule has read; called once the plan is made.

    Each with the plugin that owns the section, None for the core. Settings of components are not included:
    run.json holds them.
    """
    owners = {section.settings: plugin for plugin, section in catalog.registry.sections}
    owners |= {section.settings: entry.plugin for entry, section in catalog.registry.sections_of_components()}
    for cls in config.sections:
        for path in _unread(config.sections[cls], "", config, ledger):
            plugin = owners.get(cls)
            if plugin is None:
                yield config.problem("nothing reads it", path, "remove it, and tell the authors of neox-core"), None
            else:
                hint = f"remove it, or tell the author of {plugin.id}: settings for a rank belong to a component"
                yield config.problem(f"nothing reads it in {plugin.id} {plugin.version}", path, hint), plugin


def _unread(settings: Any, block: str, config: Config, ledger: Ledger) -> Iterator[str]:
    """The unread keys of a section or a block; a block that is switched off has none."""
    cls: type = type(settings)
    for each in fields_of(cls):
        path, value = join(block, each.name), getattr(settings, each.name)
        if attrs.has(type(value)):
            if getattr(value, "enabled", True):
                yield from _unread(value, path, config, ledger)
        elif config.is_set(path) and path not in ledger and not at_rest(each.attribute.validator):
            yield path
