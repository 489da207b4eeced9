"""Loads entry points into a Catalog: each plugin alone, all or nothing, in order of id.

pluggy marks and validates hooks. Its own loader stops at the first broken plugin and silently skips a second entry
point of the same name, so this module does the loading.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from difflib import get_close_matches
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pluggy
from attrs import field, frozen

from neox_core.errors import PluginError
from neox_core.hooks import specs
from neox_core.hooks.catalog import Catalog, Report
from neox_core.hooks.component import GROUP, Component, ConfigSection, show_traceback
from neox_core.hooks.guard import SlowListingError, only_listing
from neox_core.hooks.kinds import KINDS
from neox_core.hooks.markers import PROJECT
from neox_core.hooks.registry import Entry, PluginInfo, Registry, normalise
from neox_core.hooks.spellings import OlderSpelling
from neox_core.hooks.suspects import Watch, watch
from neox_core.hooks.switches import disabled_plugins

API = "1"
MOST_FILES = 2000

Offer = Entry | ConfigSection | OlderSpelling


def load_plugins(
    points: Iterable[EntryPoint] | None = None, disabled: Mapping[str, str] | None = None, *, again: bool = False
) -> Catalog:
    """Load every installed plugin, or those of `points`. Never raises for a plugin's fault: the report has it.

    disabled: plugin id -> what switches it off; None: as the environment and pyproject.toml set it.
    again: also try plugins that are remembered to hang or end the process that lists them.
    """
    if points is not None:
        return _load_all(points, disabled, Watch(), again=again)
    with watch() as watching:
        return _load_all(entry_points(group=GROUP), disabled, watching, again=again)


def _load_all(
    points: Iterable[EntryPoint], disabled: Mapping[str, str] | None, watching: Watch, *, again: bool
) -> Catalog:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    registry = Registry()
    reports: list[Report] = []
    off = disabled_plugins() if disabled is None else disabled
    for plugin in _plugins(points):
        info = plugin.info(plugin.points[0])
        if info.id in off:
            reports.append(Report(info, "disabled", PluginError(f"switched off by {off[info.id]}")))
            continue
        wrong_api = _wrong_api(plugin)
        if wrong_api:
            reports.append(Report(info, "incompatible", PluginError(wrong_api)))
            continue
        fault = watching.fault(plugin.id, plugin.state, again=again)
        if fault:
            reports.append(Report(info, "broken", fault))
            continue
        watching.begin(plugin.id)
        try:
            offers = _load(manager, plugin)
        except KeyboardInterrupt:
            raise
        except SlowListingError as error:
            show_traceback(error)
            watching.remember(plugin.id, plugin.state(), "slow")
            reports.append(Report(info, "broken", error))
            continue
        except BaseException as error:  # noqa: BLE001 - whatever a plugin raises, also sys.exit, the others must load
            show_traceback(error)
            reports.append(Report(info, "broken", error))
            continue
        for owner, offer in offers:
            if isinstance(offer, Entry):
                registry.add(offer)
            elif isinstance(offer, ConfigSection):
                registry.add_section(owner, offer)
            else:
                registry.add_spelling(owner, offer)
        reports.append(Report(info, "ok"))
    return Catalog(manager, registry, tuple(reports), off)


@frozen
class _Plugin:
    """One distribution and its entry points of our group, sorted."""

    id: str
    version: str
    keywords: str | None
    points: list[EntryPoint] = field(factory=list)

    def info(self, point: EntryPoint) -> PluginInfo:
        return PluginInfo(self.id, self.version, point.value.partition(":")[0].strip())

    def state(self) -> str:
        """A digest that changes with the version of the plugin and with the files of its packages."""
        import hashlib  # 10 ms, for a suspect only

        known = hashlib.sha256(f"{self.id} {self.version}".encode("utf-8", "replace"))
        for package in sorted({self.info(point).module.partition(".")[0] for point in self.points}):
            spec = find_spec(package) if package.isidentifier() else None
            folders = (spec.submodule_search_locations if spec else None) or ()
            for file in islice((each for folder in folders for each in Path(folder).rglob("*.py")), MOST_FILES):
                with suppress(OSError):
                    known.update(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}".encode("utf-8", "replace"))
        return known.hexdigest()


def _plugins(points: Iterable[EntryPoint]) -> list[_Plugin]:
    plugins: dict[str, _Plugin] = {}
    read: dict[Distribution, _Plugin] = {}  # each access parses the metadata of a distribution
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        plugin = read.get(point.dist) if point.dist else None
        if plugin is None:
            plugin = _identify(point)
            if point.dist:
                read[point.dist] = plugin
        plugin = plugins.setdefault(plugin.id, plugin)
        if not any((point.name, point.value) == (known.name, known.value) for known in plugin.points):
            plugin.points.append(point)  # a folder that is twice on sys.path lists its distributions twice
    return [plugin for _, plugin in sorted(plugins.items())]


def _identify(point: EntryPoint) -> _Plugin:
    """An entry point without a distribution comes from a test: its name is the id, and it has this core's API."""
    if point.dist is None:
        return _Plugin(normalise(point.name), "unknown", f"neox-api-{API}")
    metadata = point.dist.metadata
    return _Plugin(normalise(metadata["Name"] or point.name), metadata["Version"] or "unknown", metadata["Keywords"])


def _wrong_api(plugin: _Plugin) -> str:
    keywords = (plugin.keywords or "").replace(",", " ").split()
    declared = [word.removeprefix("neox-api-") for word in keywords if word.startswith("neox-api-")]
    if API in declared:
        return ""
    if not declared:
        return f'declares no plugin api; add keywords = ["neox-api-{API}"] to [project] in its pyproject.toml'
    return f"is made for plugin api {', '.join(declared)}; this core has api {API}"


def _load(manager: pluggy.PluginManager, plugin: _Plugin) -> list[tuple[PluginInfo, Offer]]:
    registered: list[str] = []
    offers: list[tuple[PluginInfo, Offer]] = []
    imported_before = set(sys.modules)
    try:
        for point in plugin.points:
            info = plugin.info(point)
            name = f"{plugin.id}/{point.name}"
            # What a plugin prints must not end up in the output of `--json`.
            with only_listing(plugin.id), redirect_stdout(sys.stderr):
                module = point.load()
                _check_marks(module)
                if manager.is_registered(module):
                    raise PluginError(f"{info.module} is already registered by {manager.get_name(module)}")
                registered.append(name)
                manager.register(module, name=name)
                _check_hooks(manager, module)
                offers += [(info, offer) for offer in _offers(manager, module, info)]
        _check_names([offer for _, offer in offers if isinstance(offer, Entry)])
    except BaseException:
        for name in registered:
            if manager.has_plugin(name):
                manager.unregister(name=name)
        packages = {plugin.info(point).module.partition(".")[0] for point in plugin.points}
        for module_name in set(sys.modules) - imported_before:
            if module_name.partition(".")[0] in packages:
                del sys.modules[module_name]  # a module that caught the error would pass when it is loaded again
        raise
    return offers


def _check_marks(module: object) -> None:
    """Refuse a hook without its mark, which would silently offer nothing."""
    for name, value in vars(module).items():
        a_hook = name.startswith("neox_") and hasattr(specs, name) and inspect.isfunction(value)
        if a_hook and not hasattr(value, f"{PROJECT}_impl"):
            raise PluginError(f"{name} is not marked as a hook", hint="put @hookimpl above it")


def _check_hooks(manager: pluggy.PluginManager, module: object) -> None:
    callers = manager.get_hookcallers(module) or []
    if not callers:
        raise PluginError("offers nothing: it has no hook", hint="mark one with @hookimpl; see docs/hooks.md")
    known = [name for name in vars(specs) if name.startswith("neox_")]
    for caller in callers:
        optional = any(impl.optionalhook for impl in caller.get_hookimpls() if impl.plugin is module)
        if not caller.has_spec() and not optional:
            near = get_close_matches(caller.name, known, 1)
            raise PluginError(
                f"has a hook {caller.name} that this core does not know",
                hint=f"did you mean {near[0]}?" if near else "docs/hooks.md lists all hooks",
            )


def _offers(manager: pluggy.PluginManager, module: object, info: PluginInfo) -> Iterator[Offer]:
    for kind in KINDS:
        for component in _call(manager, module, kind.hook, Component):
            yield Entry(kind.name, component, info)
    yield from _call(manager, module, "neox_config_sections", ConfigSection)
    yield from _call(manager, module, "neox_older_spellings", OlderSpelling)


def _call(manager: pluggy.PluginManager, module: object, hook: str, expected: type) -> Iterator[Any]:
    others = [plugin for plugin in manager.get_plugins() if plugin is not module]
    caller = manager.subset_hook_caller(hook, others)  # one plugin at a time, so every offer has an owner
    returned = caller()
    if len(returned) < len(caller.get_hookimpls()):  # pluggy drops None
        raise PluginError(f"{hook} returned None; it returns a list of {expected.__name__}", hint="return the list")
    for offers in returned:
        for offer in offers if isinstance(offers, Iterable) else [offers]:
            if not isinstance(offer, expected) or offer is offers:
                raise PluginError(f"{hook} returned {offers!r}; it returns a list of {expected.__name__}")
            yield offer


def _check_names(entries: list[Entry]) -> None:
    """Two plugins may offer one name, and the config selects one; within one plugin a config cannot select."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if (entry.kind, entry.component.name) in seen:
            raise PluginError(f"offers {entry.kind} {entry.component.name!r} twice")
        seen.add((entry.kind, entry.component.name))
