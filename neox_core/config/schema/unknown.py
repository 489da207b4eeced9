"""Explains a key or a component that this environment does not have."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from neox_core.config.dialects import explained, names_in
from neox_core.config.problem import Problem
from neox_core.config.report import spell
from neox_core.config.schema.convert import UNKNOWN_KEY
from neox_core.config.schema.owners import Owners
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.install import how_to_install, package_of, package_of_key, packages_of
from neox_core.hooks.kinds import Kind


def explain_unknown(
    key: str, value: Any, spelled: str, owners: Owners, catalog: Catalog, fields: Mapping[str, Any]
) -> Iterator[Problem]:
    """A top-level key that nothing has read: of a component not chosen, a missing package, another program, or nothing.

    `null` sets nothing of a component that is not chosen.
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
    elif package := package_of_key(key):
        status, hint = _status(package, catalog)
        yield Problem(f"belongs to {package}, {status}", key, hint)
    elif (said := explained(key, value, catalog.registry)) is not None:
        yield from said
    else:
        near = get_close_matches(key, (*owners.keys(), *names_in("", catalog.registry)), 1, 0.7)
        suspects = "".join(f"; not loaded, and may own it: {e.line}" for e in catalog.reports if e.status != "ok")
        hint = f"did you mean {spell(near[0])}?" if near else "no key has a similar name" + _of_other_programs(catalog)
        yield Problem(f"{UNKNOWN_KEY}{suspects}", key, hint)


def explain_inner(problem: Problem, value: Any, catalog: Catalog) -> Iterator[Problem]:
    """An unknown key inside a block: it belongs to another program, or to nothing."""
    if (said := explained(problem.key, value, catalog.registry)) is not None:
        yield from said
        return
    block, _, key = problem.key.rpartition(".")
    if not problem.hint.startswith("did you mean"):
        near = get_close_matches(key, names_in(block, catalog.registry), 1)
        hint = f"did you mean {near[0]!r}?" if near else problem.hint + _of_other_programs(catalog)
        problem = Problem(problem.message, problem.key, hint)
    yield problem


def missing_package(kind: Kind, name: str, catalog: Catalog) -> str:
    """How to install the first-party package that has a component; "" where it is installed, or none has it."""
    package = package_of(kind.name, name)
    return how_to_install(package) if package and catalog.report(package) is None else ""


def _of_other_programs(catalog: Catalog) -> str:
    """The first-party dialects that are missing here, and would know the keys of another program."""
    there = catalog.registry.names("dialect")
    missing = {name: _status(each, catalog) for name, each in packages_of("dialect").items() if name not in there}
    return "".join(
        f"; a key of {name} needs {packages_of('dialect')[name]}, {status}: {hint}"
        for name, (status, hint) in missing.items()
    )


def _status(package: str, catalog: Catalog) -> tuple[str, str]:
    """Why the component of a package is not there, and what to do."""
    if (report := catalog.report(package)) is None:
        return "which is not installed", how_to_install(package)
    if report.status == "ok":
        return f"but version {report.plugin.version} does not have it", how_to_install(package)
    return f"which is {report.status}" + (f": {report.cause}" if report.cause else ""), report.hint


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(getattr(value, "type", value))
