"""Entry points to Registry: each plugin alone, all or nothing, in order of id.

pluggy marks and validates; its own loader stops at the first broken plugin and skips a second entry point of the same
name in silence, so the loading is done here.
"""

import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pluggy
import tomli
from attrs import frozen

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks import specs
from neox_core.hooks.component import Component, ConfigSection
from neox_core.hooks.guard import no_heavy_imports
from neox_core.hooks.kinds import KINDS
from neox_core.hooks.markers import PROJECT
from neox_core.hooks.registry import Entry, PluginInfo, Registry

GROUP = "neox.plugins"
API = "1"

Status = Literal["ok", "broken", "disabled", "incompatible"]


@frozen
class Report:
    """What became of one plugin."""

    plugin: PluginInfo
    status: Status
    error: BaseException | None = None

    @property
    def cause(self) -> str:
        """The reason in one line; empty when all is well."""
        if self.error is None:
            return ""
        if isinstance(self.error, NeoxError):
            return self.error.message
        return f"{type(self.error).__name__}: {self.error}"


@frozen
class Catalog:
    """All plugins of this environment: the manager, what they offer, and what became of each."""

    manager: pluggy.PluginManager
    registry: Registry
    reports: tuple[Report, ...]

    def report(self, plugin: str) -> Report | None:
        return next((report for report in self.reports if report.plugin.id == plugin), None)


def load_plugins(
    points: Iterable[EntryPoint] | None = None, disabled: frozenset[str] | None = None
) -> Catalog:
    """Load every installed plugin, or those of `points`. Never raises for a plugin's fault: the report has it."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    registry = Registry()
    reports: list[Report] = []
    off = disabled_plugins() if disabled is None else disabled
    found = entry_points(group=GROUP) if points is None else points
    for info, point in sorted(((_identify(point), point) for point in found), key=lambda pair: (pair[0].id, pair[0].entry_point)):
        if info.id in off:
            reports.append(Report(info, "disabled"))
            continue
        wrong_api = _wrong_api(point)
        if wrong_api:
            reports.append(Report(info, "incompatible", PluginError(wrong_api)))
            continue
        try:
            entries, sections = _load(manager, info, point)
        except (Exception, SystemExit) as error:  # whatever a plugin does, the others must load
            reports.append(Report(info, "broken", error))
            continue
        for entry in entries:
            registry.add(entry)
        for section in sections:
            registry.add_section(info, section)
        reports.append(Report(info, "ok"))
    return Catalog(manager, registry, tuple(reports))


def disabled_plugins(start: Path | None = None) -> frozenset[str]:
    """Plugin ids switched off by NEOX_PLUGINS_DISABLE (comma separated) or by the nearest pyproject.toml upwards
    that has `[tool.neox] disable = [...]`."""
    names = [name for name in os.environ.get("NEOX_PLUGINS_DISABLE", "").split(",") if name.strip()]
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                tool = tomli.loads(file.read_text(encoding="utf-8")).get("tool", {})
            except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
                raise PluginError(f"{file}: cannot read [tool.neox]: {error}") from error
            if "neox" in tool:
                names += tool["neox"].get("disable", [])
                break
    return frozenset(normalise(name) for name in names)


def normalise(name: str) -> str:
    """A distribution's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _identify(point: EntryPoint) -> PluginInfo:
    if point.dist is None:
        return PluginInfo(normalise(point.name), "unknown", point.name, point.module)
    return PluginInfo(normalise(point.dist.name), point.dist.version, point.name, point.module)


def _wrong_api(point: EntryPoint) -> str:
    if point.dist is None:
        return ""
    keywords = (point.dist.metadata["Keywords"] or "").replace(",", " ").split()
    declared = [word.removeprefix("neox-api-") for word in keywords if word.startswith("neox-api-")]
    if declared == [API]:
        return ""
    if not declared:
        return f'declares no plugin api; add keywords = ["neox-api-{API}"] to [project] in its pyproject.toml'
    return f"is made for plugin api {', '.join(declared)}; this core has api {API}"


def _load(
    manager: pluggy.PluginManager, info: PluginInfo, point: EntryPoint
) -> tuple[list[Entry], list[ConfigSection]]:
    name = f"{info.id}/{info.entry_point}"
    try:
        with no_heavy_imports(info.id):
            module = point.load()
            manager.register(module, name=name)
            manager.check_pending()  # a hook that this core does not know
            return list(_entries(manager, module, info)), list(_sections(manager, module, info))
    except BaseException:
        if manager.has_plugin(name):
            manager.unregister(name=name)
        raise


def _call(manager: pluggy.PluginManager, module: ModuleType, hook: str) -> Iterator[Any]:
    others = [plugin for plugin in manager.get_plugins() if plugin is not module]
    for offers in manager.subset_hook_caller(hook, others)():  # one plugin at a time, so every offer has an owner
        yield from offers


def _entries(manager: pluggy.PluginManager, module: ModuleType, info: PluginInfo) -> Iterator[Entry]:
    for kind in KINDS:
        for component in _call(manager, module, kind.hook):
            if not isinstance(component, Component):
                raise PluginError(f"{kind.hook} of {info.id} returned {component!r}, not a Component")
            yield Entry(kind.name, component, info)


def _sections(manager: pluggy.PluginManager, module: ModuleType, info: PluginInfo) -> Iterator[ConfigSection]:
    for section in _call(manager, module, "neox_config_sections"):
        if not isinstance(section, ConfigSection):
            raise PluginError(f"neox_config_sections of {info.id} returned {section!r}, not a ConfigSection")
        yield section
