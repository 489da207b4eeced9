"""Loading one plugin as a test wants it, and the check that listing it stays light."""

from importlib.metadata import entry_points
from typing import Any

from neox_core.config.schema.structure import structure_settings
from neox_core.errors import ConfigError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import Entry, normalise
from neox_core.testing.clauses import heavy_imports, hold


def load_only(*plugin_ids: str) -> Catalog:
    """A catalogue of the installed plugins of these names, and no other.

    Raises PluginError, with the cause, for one that is not installed, broken or incompatible. What the environment
    switches off is on here.
    """
    wanted = {normalise(plugin) for plugin in plugin_ids}
    points = [point for point in entry_points(group=GROUP) if point.dist and normalise(point.dist.name) in wanted]
    catalog = load_plugins(points, disabled={})
    catalog.require(sorted(wanted))
    return catalog


def assert_light(plugin_id: str) -> None:
    """Listing the plugin imports no heavy library; tried in a fresh process, since this one may have torch already."""
    heavy = heavy_imports("from neox_core.testing import load_only; load_only(sys.argv[1])", plugin_id)
    hold(not heavy, f"listing {plugin_id} is not light: {heavy}")


def build(entry: Entry, **settings: Any) -> Any:
    """The settings of a component, made of `settings` just as from a config file; None if it has none.

    Raises ConfigError with all that is wrong.
    """
    if entry.component.settings is not None:
        return structure_settings(entry.component.settings, settings, path=entry.definition.settings_at)
    if settings:
        raise ConfigError(f"{entry.kind} {entry.qualified} has no settings; got {', '.join(settings)}")
    return None
