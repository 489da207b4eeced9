"""Loads entry points into a Catalog: each plugin alone, all or nothing, in order of id.

pluggy marks and validates hooks. Its own loader stops at the first broken plugin and silently skips a second entry
point of the same name, so this module does the loading.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import pluggy
from attrs import define, field

from neox_core.errors import PluginError
from neox_core.hooks.blame import show_traceback
from neox_core.hooks.catalog import Catalog, Report
from neox_core.hooks.component import GROUP, Component, ConfigSection
from neox_core.hooks.definitions import Defined, check_kinds, clashes, manager_of, unknown_hook
from neox_core.hooks.guard import SlowListingError, only_listing
from neox_core.hooks.installed import WATCH, Plugin, Watch, plugins_of, watch_of, wrong_api
from neox_core.hooks.kinds import Kind
from neox_core.hooks.markers import PROJECT
from neox_core.hooks.registry import Entry, Offer, PluginInfo, Registry
from neox_core.hooks.switches import disabled_plugins


def load_plugins(
    points: Iterable[EntryPoint] | None = None, disabled: Mapping[str, str] | None = None, *, again: bool = False
) -> Catalog:
    """Load every installed plugin, or those of `points`. Never raises for a plugin's fault: the report has it.

    disabled: plugin id -> what switches it off; None: as the environment and pyproject.toml set it.
    again: also try plugins that are remembered to hang or end the process that lists them.
    """
    off = disabled_plugins() if disabled is None else disabled
    if points is not None:
        return _load_all(points, off, Watch(), again=again)
    every = entry_points()
    with watch_of(every.select(group=WATCH), off) as watching:
        return _load_all(every.select(group=GROUP), off, watching, again=again)


def _load_all(points: Iterable[EntryPoint], off: Mapping[str, str], watching: Watch, *, again: bool) -> Catalog:
    """In two passes, for kinds and then for offers: so those that define a kind may come after those that offer it."""
    reports: dict[str, Report] = {}
    listings: list[_Listing] = []
    core = manager_of(())
    for plugin in plugins_of(points):
        info = plugin.info(plugin.points[0])
        if info.id in off:
            reports[info.id] = Report(info, "disabled", PluginError(f"switched off by {off[info.id]}"))
            continue
        if wrong := wrong_api(plugin):
            reports[info.id] = Report(info, "incompatible", PluginError(wrong))
            continue
        if fault := watching.fault(plugin, again=again):
            reports[info.id] = Report(info, "broken", fault)
            continue
        listing = _Listing(plugin, info)
        with _alone(listing, reports, watching):
            _import(core, listing)
        listings.append(listing)
    sound = [each for each in listings if each.info.id not in reports]
    for name, error in clashes(each for listing in sound for each in listing.defined()).items():
        reports[name] = Report(next(each.info for each in listings if each.info.id == name), "broken", error)
    return _offered(listings, reports, watching, off)


def _offered(
    listings: Sequence["_Listing"], reports: dict[str, Report], watching: Watch, off: Mapping[str, str]
) -> Catalog:
    """The second pass: done again without the kinds of a plugin that turns out to be broken."""
    while True:
        sound = [each for each in listings if each.info.id not in reports]
        registry = Registry()
        for plugin, kind in (each for listing in sound for each in listing.defined()):
            registry.add_kind(plugin, kind)
        manager = manager_of(registry.kinds_of_plugins())
        failed = dict(reports)
        lost = {kind.hook: info.id for each in listings for info, kind in each.defined() if info.id in failed}
        specified = [name for name, caller in vars(manager.hook).items() if caller.has_spec()]
        unknown = partial(unknown_hook, known=specified, reports=failed, lost=lost)
        for listing in sound:
            with _alone(listing, reports, watching):
                _register(manager, listing, registry, unknown)
        if not any(each.kinds for each in sound if each.info.id in reports):
            break
    for each in sound:
        if each.info.id not in reports:
            reports[each.info.id] = Report(each.info, "ok")
            for owner, offer in each.offers:
                registry.add_offer(owner, offer)
    return Catalog(manager, registry, tuple(reports[name] for name in sorted(reports)), off)


@define
class _Listing:
    """A plugin while it is being listed."""

    plugin: Plugin
    info: PluginInfo
    modules: list[tuple[str, PluginInfo, ModuleType]] = field(factory=list)
    kinds: list[Kind] = field(factory=list)
    offers: list[tuple[PluginInfo, Offer]] = field(factory=list)
    imported: set[str] = field(factory=set)

    def defined(self) -> Iterator[Defined]:
        return ((self.info, kind) for kind in self.kinds)

    def forget(self) -> None:
        """A module that caught an error would pass when it is loaded again."""
        for name in self.imported:
            if name.partition(".")[0] in self.plugin.packages():
                sys.modules.pop(name, None)


@contextmanager
def _alone(listing: _Listing, reports: dict[str, Report], watching: Watch) -> Iterator[None]:
    """Run a part of listing one plugin: whatever it raises becomes its report, and the others still load."""
    plugin, info = listing.plugin, listing.info
    watching.begin(plugin)
    before = set(sys.modules)
    try:
        # What a plugin prints must not end up in the output of `--json`.
        with only_listing(plugin.id), redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises, also sys.exit, the others must load
        show_traceback(error)
        if isinstance(error, SlowListingError):
            watching.slow(plugin)
        reports[info.id] = Report(info, "broken", error)
    finally:
        listing.imported |= sys.modules.keys() - before
        if info.id in reports:
            listing.forget()


def _import(manager: pluggy.PluginManager, listing: _Listing) -> None:
    """Import the modules of a plugin, and ask them for the kinds that it defines. manager: knows the core's hooks."""
    for point in listing.plugin.points:
        info, module = listing.plugin.info(point), point.load()
        _check_marks(manager, module)
        listing.modules.append((f"{listing.plugin.id}/{point.name}", info, module))
        if hasattr(module, "neox_kinds"):
            manager.register(module)
            listing.kinds += _call(manager, module, "neox_kinds", Kind)
            check_kinds(listing.kinds)


def _register(
    manager: pluggy.PluginManager, listing: _Listing, registry: Registry, unknown: Callable[[str], PluginError]
) -> None:
    """Register the modules of a plugin and take its offers; when one is wrong, none is registered."""
    registered: list[str] = []
    listing.offers.clear()
    try:
        for name, info, module in listing.modules:
            _check_marks(manager, module)
            if manager.is_registered(module):
                raise PluginError(f"{info.module} is already registered by {manager.get_name(module)}")
            registered.append(name)
            manager.register(module, name=name)
            mine = _hooks_of(manager, module, unknown)
            listing.offers += [(info, offer) for offer in _offers(manager, module, info, registry, mine)]
        _check_names([offer for _, offer in listing.offers if isinstance(offer, Entry)])
    except BaseException:
        for name in registered:
            if manager.has_plugin(name):
                manager.unregister(name=name)
        raise


def _check_marks(manager: pluggy.PluginManager, module: object) -> None:
    """Refuse a hook without its mark, which would silently offer nothing."""
    for name, value in vars(module).items():
        caller = getattr(manager.hook, name, None) if inspect.isfunction(value) else None
        if caller is not None and caller.has_spec() and not hasattr(value, f"{PROJECT}_impl"):
            raise PluginError(f"{name} is not marked as a hook", hint="put @hookimpl above it")


def _hooks_of(manager: pluggy.PluginManager, module: object, unknown: Callable[[str], PluginError]) -> set[str]:
    """The names of the hooks that a module implements. Raises PluginError for one that nothing specifies."""
    callers = manager.get_hookcallers(module) or []
    if not callers:
        raise PluginError("offers nothing: it has no hook", hint="mark one with @hookimpl; see docs/hooks.md")
    for caller in callers:
        optional = any(impl.optionalhook for impl in caller.get_hookimpls() if impl.plugin is module)
        if not caller.has_spec() and not optional:
            raise unknown(caller.name)
    return {caller.name for caller in callers}


def _offers(
    manager: pluggy.PluginManager, module: object, info: PluginInfo, registry: Registry, mine: set[str]
) -> Iterator[Offer]:
    for kind in registry.kinds.values():
        for component in () if kind.hook not in mine else _call(manager, module, kind.hook, Component):
            yield Entry(kind.name, component, info, kind)
    if "neox_config_sections" in mine:
        yield from _call(manager, module, "neox_config_sections", ConfigSection)


def _call(manager: pluggy.PluginManager, module: object, hook: str, expected: type) -> Iterator[Any]:
    caller = manager.subset_hook_caller(hook, manager.get_plugins() - {module})  # so every offer has an owner
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
