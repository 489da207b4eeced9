"""What to say about a key or a component that is not there."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli

from neox_core.config.convert import UNKNOWN_KEY
from neox_core.config.owners import Owners
from neox_core.config.problem import Problem
from neox_core.config.report import spell
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.kinds import KIND_BY_NAME, Kind

NOT_YET = "is known, but not available in this version yet"
KNOWN_KEYS = Path(__file__).with_name("known_keys.toml")


def known_keys() -> Mapping[str, Any]:
    """known_keys.toml: areas of keys that later versions will have, and which package has the keys of a component."""
    return tomli.loads(KNOWN_KEYS.read_text(encoding="utf-8"))


def explain_unknown(key: str, spelled: str, owners: Owners, catalog: Catalog, fields: Mapping[str, Any]) -> Problem:
    """A top-level key that nobody has read: of a component that is not chosen, of a missing package, or of nobody."""
    belongs = owners.components_of.get(key)
    if belongs:
        kind = KIND_BY_NAME[belongs[0].kind]
        names = " or ".join(dict.fromkeys(entry.component.name for entry in belongs))
        chooser = kind.key.replace("_", "-")
        chosen = fields.get(kind.key.partition(".")[0])
        now = f"this config has {chooser}: {_shown(chosen)}"
        return Problem(
            f"belongs to {kind.name} {names}, and {now}",
            key,
            f"set {chooser}: {belongs[0].component.name}, or remove {spelled}",
        )
    known = known_keys()
    for package, keys in known["packages"].items():
        if key in keys:
            status, hint = _status(package, catalog)
            return Problem(f"belongs to {package}, {status}", key, hint)
    for area, keys in known["areas"].items():
        if key in keys:
            return Problem(NOT_YET, key, f"of {area}; remove it")
    near = get_close_matches(key, owners.keys(), 1)
    suspects = "".join(f"; not loaded, and may own it: {report.line}" for report in catalog.failed())
    return Problem(f"{UNKNOWN_KEY}{suspects}", key, f"did you mean {spell(near[0])}?" if near else "no key is like it")


def explain_inner(problem: Problem) -> Problem:
    """An unknown key inside a block of the core: of nobody, or of a later version."""
    block, _, key = problem.key.rpartition(".")
    return Problem(NOT_YET, problem.key, "remove it") if key in known_keys()["blocks"].get(block, ()) else problem


def missing_package(kind: Kind, name: str, catalog: Catalog) -> str:
    """How to install the first-party package that has a component, when it is not there; else ""."""
    packages = known_keys()["components"].get(kind.name.replace(" ", "_"), {})
    package = next((each for each, names in packages.items() if name in names), "")
    return f"pip install {package}" if package and catalog.report(package) is None else ""


def _status(package: str, catalog: Catalog) -> tuple[str, str]:
    report = catalog.report(package)
    if report is None:
        return "which is not installed", f"pip install {package}"
    if report.status == "ok":
        return f"but version {report.plugin.version} does not have it", f"pip install --upgrade {package}"
    return f"which is {report.status}" + (f": {report.cause}" if report.cause else ""), report.hint


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(getattr(value, "type", value))
