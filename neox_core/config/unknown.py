"""What to say about a key or a component that is not there."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli

from neox_core.config.convert import spell
from neox_core.config.owners import Owners
from neox_core.config.problem import Problem
from neox_core.errors import PluginError
from neox_core.hooks.kinds import KIND_BY_NAME, Kind
from neox_core.hooks.loader import Catalog

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
            return Problem(f"belongs to {package}, {_status(package, catalog)}", key, f"pip install {package}")
    for area, keys in known["areas"].items():
        if key in keys:
            return Problem("is known, but not available in this version yet", key, f"{area}; remove it")
    near = get_close_matches(key, owners.keys(), 1)
    return Problem("unknown key", key, f"did you mean {spell(near[0])}?" if near else "nothing has a key like this")


def explain_missing_component(kind: Kind, name: str, error: PluginError, catalog: Catalog) -> tuple[str, str]:
    """(message, hint) for a component that the registry does not find."""
    plugin, _, plain = name.rpartition(":")
    packages = known_keys()["components"].get(kind.name.replace(" ", "_"), {})
    package = plugin or next((each for each, names in packages.items() if plain in names), "")
    report = catalog.report(package) if package else None
    if report is not None and report.status != "ok":
        return (
            f"{kind.name} {name!r} comes from {package}, which is {report.status}: {report.cause or 'switched off'}",
            "`neox plugins check` shows more",
        )
    if report is None and package:
        return error.message, f"pip install {package}"
    faulty = [each for each in catalog.reports if each.status in ("broken", "incompatible")]
    if faulty and not catalog.registry.offers(kind.name, plain):
        listed = "; ".join(f"{each.plugin.id} is {each.status}: {each.cause}" for each in faulty)
        return f"{error.message}; {listed}", error.hint
    return error.message, error.hint


def _status(package: str, catalog: Catalog) -> str:
    report = catalog.report(package)
    if report is None:
        return "which is not installed"
    return f"which is {report.status}" + (f": {report.cause}" if report.cause else "")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(getattr(value, "type", value))
