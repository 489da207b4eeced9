"""The kinds that plugins define: which of them count, and whose a hook is that this environment does not have."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pluggy

from neox_core.errors import PluginError
from neox_core.hooks import specs
from neox_core.hooks.catalog import Report
from neox_core.hooks.install import first_party_hooks, how_to_install
from neox_core.hooks.kinds import KINDS, Kind
from neox_core.hooks.markers import PROJECT, hookspec
from neox_core.hooks.registry import PluginInfo, normalise

Defined = tuple[PluginInfo, Kind]

_OF_THE_CORE = {"plans": "planner", "names_others": "planner", "comes_with": "part of a plan"}


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """As pluggy's, which takes 3 ms more for the names of modules, since it looks at them as at properties."""
        may_be = not isinstance(plugin, ModuleType) or isinstance(vars(plugin).get(name), FunctionType | MethodType)
        return super().parse_hookimpl_opts(plugin, name) if may_be else None


def manager_of(kinds: Iterable[Kind]) -> pluggy.PluginManager:
    """A plugin manager that knows the hooks of the core and of these kinds."""
    manager = _Manager(PROJECT)
    manager.add_hookspecs(specs)
    manager.add_hookspecs(type("Kinds", (), {kind.hook: _spec(kind) for kind in (*KINDS, *kinds)}))
    return manager


def _spec(kind: Kind) -> object:
    def offers() -> None:
        """A hook without arguments."""

    offers.__name__ = offers.__qualname__ = kind.hook
    return hookspec(offers)


def check_kinds(kinds: Iterable[Kind]) -> None:
    """Raises PluginError for kinds of one plugin that the core's, or each other, stand in the way of."""
    taken = {mark: "neox-core" for kind in KINDS for mark in _marks(kind)}
    taken |= {("hook", name): "neox-core" for name in vars(specs) if name.startswith("neox_")}
    for kind in kinds:
        for mark in _marks(kind):
            if mark in taken:
                said = f"defines kind {kind.name!r}, whose {mark[0]} {mark[1]!r} is one of {taken[mark]}"
                raise PluginError(said, hint="give the kind another one")
            taken[mark] = f"its kind {kind.name!r}"
        for name, what in _OF_THE_CORE.items():
            if getattr(kind, name):
                said = f"defines kind {kind.name!r} with {name}, and the {what} is one of the core's kinds only"
                raise PluginError(said, hint=f"remove {name}")


def clashes(defined: Iterable[Defined]) -> dict[str, PluginError]:
    """Plugin -> why it must not be loaded: another one defines the same kind, hook or key.

    A kind that a package of neox's own repository is known for stays that package's.
    """
    owners: dict[tuple[str, str], list[Defined]] = defaultdict(list)
    for plugin, kind in defined:
        for mark in _marks(kind):
            owners[mark].append((plugin, kind))
    found: dict[str, PluginError] = {}
    for (what, name), several in ((mark, those) for mark, those in owners.items() if len(those) > 1):
        ours = {plugin.id for plugin, kind in several if first_party_hooks().get(kind.hook) == plugin.id}
        for plugin, kind in several:
            others = [f"{other.id} {other.version}" for other, _ in several if other.id != plugin.id]
            if plugin.id not in ours:
                message = f"defines kind {kind.name!r}, whose {what} {name!r} {' and '.join(others)} defines too"
                found.setdefault(plugin.id, PluginError(message, hint="uninstall one of them, or switch it off"))
    return found


def _marks(kind: Kind) -> tuple[tuple[str, str], ...]:
    """What no two kinds have in common."""
    return (("name", kind.name), ("hook", kind.hook), *((("key", kind.key),) if kind.key else ()))


def unknown_hook(
    hook: str, known: Iterable[str], reports: Mapping[str, Report], lost: Mapping[str, str]
) -> PluginError:
    """The error of a hook that nothing here defines, with its owner if it is known.

    reports: of the plugins that are not in use. lost: hook -> the plugin among them that defines it.
    """
    near = get_close_matches(hook, list(known), 1)
    owner = lost.get(hook) or first_party_hooks().get(hook, "")
    report = reports.get(normalise(owner))
    said, hint = f"implements {hook}, a hook of {owner}, which is not installed", how_to_install(owner)
    if report is not None:
        said, hint = f"implements {hook}, a hook of {owner}, which is {report.status}: {report.cause}", report.hint
    elif not owner:
        said = f"has a hook {hook} that neither this core nor an installed plugin defines"
        hint = f"did you mean {near[0]}?" if near else "install the plugin that defines it; docs/hooks.md lists hooks"
    return PluginError(said, hint=hint)
