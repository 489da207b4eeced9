"""Explains a key or a component that this environment does not have."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from neox_core.config.compat.known import gpt_neox, known, packages
from neox_core.config.problem import Problem
from neox_core.config.report import spell
from neox_core.config.schema.convert import UNKNOWN_KEY, join, same
from neox_core.config.schema.owners import Owners
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.install import how_to_install
from neox_core.hooks.kinds import Kind

NOT_YET = "is known, but not available in this version yet"


def explain_unknown(
    key: str, value: Any, spelled: str, owners: Owners, catalog: Catalog, fields: Mapping[str, Any]
) -> Iterator[Problem]:
    """A top-level key that nothing has read: it belongs to a component that is not chosen, to a missing package, or to
    nothing.

    For a block of a later version, one problem for each key. `null` sets nothing of a component that is not chosen.
    """
    belongs = owners.of(key)
    if belongs and value is None:
        return
    if belongs:
        kind = belongs[0].definition
        names = " or ".join(dict.fromkeys(each.component.name for each in belongs if each.kind == kind.name))
        chooser = kind.key.replace("_", "-")
        chosen = fields.get(kind.key.partition(".")[0])
        now = f"this config has {chooser}: {_shown(chosen)}"
        hint = f"set {chooser}: {belongs[0].component.name}, or remove {spelled}"
        yield Problem(f"belongs to {kind.name} {names}, and {now}", key, hint)
    elif package := packages()[0].get(key):
        status, hint = _status(package, catalog)
        yield Problem(f"belongs to {package}, {status}", key, hint)
    elif known().find(key):
        yield from _not_yet(key, value)
    elif key in gpt_neox()[0]:
        yield from _foreign(key, value)
    else:
        near = get_close_matches(key, (*owners.keys(), *known().names_in("")), 1, 0.7)
        suspects = "".join(f"; not loaded, and may own it: {report.line}" for report in catalog.failed())
        hint = f"did you mean {spell(near[0])}?" if near else "no key has a similar name"
        yield Problem(f"{UNKNOWN_KEY}{suspects}", key, hint)


def explain_inner(problem: Problem, value: Any) -> Iterator[Problem]:
    """An unknown key inside a block of this version: it belongs to a later version, or to nothing."""
    block, _, key = problem.key.rpartition(".")
    if known().find(problem.key):
        yield from _not_yet(problem.key, value)
        return
    near = () if problem.hint.startswith("did you mean") else get_close_matches(key, known().names_in(block), 1)
    yield Problem(problem.message, problem.key, f"did you mean {near[0]!r}?") if near else problem


def _not_yet(path: str, value: Any) -> Iterator[Problem]:
    """Each key that is written inside a block of a later version, or the block when nothing is; null sets nothing."""
    key = known().find(path)
    if key is not None and value is None:
        return
    if key is None:
        yield Problem(UNKNOWN_KEY, path, _near(path))
    elif isinstance(value, Mapping) and value and known().names_in(key.path):
        for name, inner in value.items():
            yield from _not_yet(join(path, name), inner)
    else:
        yield Problem(f"{NOT_YET}: it will come with {key.distribution}", path, "remove it")


def _foreign(key: str, value: Any) -> Iterator[Problem]:
    """A key of GPT-NeoX alone; a value without effect gives a note."""
    what = gpt_neox()[0][key]
    message = f"is a key of GPT-NeoX that this version does not have: {what.part}"
    if any(same(value, each) for each in what.rests):
        yield Problem(f"asks for nothing; it {message}", key, severity="note")
    elif value is not None:
        yield Problem(message, key, what.hint)


def _near(path: str) -> str:
    block, _, name = path.rpartition(".")
    outer = known().find(block)
    names = known().names_in(outer.path if outer else block)
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def unavailable(kind: Kind, name: str) -> str:
    """The package that will have a component in a later version; "" for an unknown name."""
    return known().components.get(kind.name, {}).get(name.rpartition(":")[2], "")


def foreign_name(kind: Kind, name: str) -> str | None:
    """What to do about a name of GPT-NeoX that this version does not have; None for an unknown name."""
    return gpt_neox()[1].get(kind.name, {}).get(name)


def settings_of_unavailable(kind: Kind, values: Mapping[str, Any], others: Iterable[str]) -> Iterator[Problem]:
    """The settings of a component of a later version; `others`: settings that components of this version have."""
    theirs = set(others)
    for key, value in values.items():
        if key not in theirs:
            yield from _not_yet(join(kind.settings_at, key), value)


def missing_package(kind: Kind, name: str, catalog: Catalog) -> str:
    """How to install the first-party package that has a component, or a similar name of a later version."""
    package = packages()[1].get(kind.name, {}).get(name, "")
    if package and catalog.report(package) is None:
        return how_to_install(package)
    names = (*catalog.registry.names(kind.name), *known().components.get(kind.name, {}))
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else ""


def _status(package: str, catalog: Catalog) -> tuple[str, str]:
    report = catalog.report(package)
    if report is None:
        return "which is not installed", how_to_install(package)
    if report.status == "ok":
        return f"but version {report.plugin.version} does not have it", how_to_install(package)
    return f"which is {report.status}" + (f": {report.cause}" if report.cause else ""), report.hint


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(getattr(value, "type", value))
