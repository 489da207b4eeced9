"""A plan as rows for people: dotted path -> value.

They are made of run.json's plain values, so a stored plan has the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DEEPEST = 16
"""Depth of blocks that become rows of their own, and of values that are shown within a value."""


class Told(str):
    """A value that is already in words, shown without quotes."""


def flat(value: Any, path: str = "", depth: int = 0) -> dict[str, Any]:
    """Scalars, lists of scalars and words by path. A component is its name and package, its settings are rows too."""
    if depth >= DEEPEST or not isinstance(value, dict | list) or not value:
        return {path: value}
    if isinstance(value, list):
        return _listed(value, path, depth)
    if _is_component(value):
        return {path: Told(_component(value)), **_settings(value, path, depth)}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{path}.{key}" if path else str(key), depth + 1)
    return found


def in_words(value: Any, depth: int = 0) -> str:
    """A value of `flat` in words."""
    if isinstance(value, Told):
        return value
    if depth >= DEEPEST:
        return "..."
    if isinstance(value, list):
        return f"[{', '.join(in_words(each, depth + 1) for each in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {in_words(inner, depth + 1)}" for key, inner in value.items()) or "none"
    return json.dumps(value)


def _listed(values: Sequence[Any], path: str, depth: int) -> dict[str, Any]:
    if all(_is_component(each) for each in values):
        found: dict[str, Any] = {path: Told(f"[{', '.join(map(_component, values))}]")}
        for each in values:
            found |= _settings(each, f"{path}.{each['name']}", depth)
        return found
    if all(_has(each, "op", "asked", "offers") for each in values):  # kernels
        return {f"{path}.{each['op']}": Told(_kernel(each)) for each in values}
    if all(_has(each, "name", "slots") for each in values):
        return {path: Told(f"[{', '.join(_hosts(values))}]")}
    if all(_has(each, "prefix", "weight") for each in values):
        return {path: Told(f"[{', '.join('{prefix} x {weight}'.format(**each) for each in values)}]")}
    return {path: values}


def _settings(component: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
    settings = component["settings"]
    return flat(settings, f"{path}.settings", depth + 1) if settings else {}


def _has(value: Any, *keys: str) -> bool:
    return isinstance(value, dict) and set(keys) <= value.keys()


def _is_component(value: Any) -> bool:
    named = _has(value, "kind", "name", "plugin", "version", "target", "settings")
    return named and isinstance(value["settings"], dict)


def _component(value: Mapping[str, Any]) -> str:
    return f"{value['name']} ({value['plugin']} {value['version']})"


def _kernel(value: Mapping[str, Any]) -> str:
    offers = [_component(each) for each in _list(value["offers"]) if _is_component(each)]
    return f"{value['asked']}: {', '.join(offers) or 'the reference'}"


def _hosts(values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in values:
        devices = _list(each.get("devices"))
        picked = "" if devices == list(range(len(devices))) else f" ({', '.join(map(str, devices))})"
        yield f"{each['name']} x {each['slots']}{picked}"


def _list(value: Any) -> list[Any]:
    """What a stored plan, which anybody may have written, has as a list."""
    return value if isinstance(value, list) else []
