"""Load one plugin for a test, and check that listing it imports no heavy library."""

from importlib.metadata import entry_points
from typing import Any

from neox_author.testing.clauses import heavy_imports, hold
from neox_core.config.schema.structure import structure_settings
from neox_core.errors import ConfigError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import GROUP
from neox_core.hooks.definitions import manager_of
from neox_core.hooks.install import first_party_hooks, requirements
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import Entry, Registry, normalise


def load_only(*plugin_ids: str) -> Catalog:
    """A catalogue of the installed plugins of these names, and no other; of the plugins that they depend on, only the
    kinds that these define.

    Raises PluginError, with the cause, for one that is not installed, broken or incompatible. What the environment
    switches off is on here.
    """
    wanted = {normalise(plugin) for plugin in plugin_ids}
    names = wanted | {normalise(each) for plugin in wanted for each in requirements(plugin)}
    names |= set(first_party_hooks().values())  # a plugin made before a kind had a definer does not depend on it
    points = [point for point in entry_points(group=GROUP) if point.dist and normalise(point.dist.name) in names]
    whole = load_plugins(points, disabled={})
    registry, manager = Registry(), manager_of(whole.registry.kinds_of_plugins())
    for kind, definer in whole.registry.definers.items():
        registry.add_kind(definer, whole.registry.kinds[kind])
    for plugin, offer in whole.registry.offered():
        if plugin.id in wanted:
            registry.add_offer(plugin, offer)
    for name, module in whole.manager.list_name_plugin():
        if name.partition("/")[0] in wanted:
            manager.register(module, name)
    catalog = Catalog(manager, registry, tuple(each for each in whole.reports if each.plugin.id in wanted))
    catalog.require(sorted(wanted))
    return catalog


def assert_light(plugin_id: str) -> None:
    """Check that listing the plugin imports no heavy library, in a fresh process, since this one may have torch."""
    heavy = heavy_imports("from neox_author.testing import load_only; load_only(sys.argv[1])", plugin_id)
    if heavy:
        raise AssertionError(f"listing {plugin_id} is not light: {heavy}")
    hold(True, "listing it imports no heavy library")


def build(entry: Entry, **settings: Any) -> Any:
    """The settings of a component, built as from a config file; None if it has none.

    entry: of the component
    settings: by name

    Raises ConfigError with every fault.
    """
    if entry.component.settings is not None:
        return structure_settings(entry.component.settings, settings, path=entry.definition.settings_at)
    if settings:
        raise ConfigError(f"{entry.kind} {entry.qualified} has no settings; got {', '.join(settings)}")
    return None
