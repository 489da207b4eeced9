"""What a resumed run computes differently from the run that wrote its checkpoint, by what its keys change."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from neox_core.config.problem import Problem
from neox_core.config.schema.convert import block_of, by_key, same
from neox_core.config.schema.structure import Config
from neox_core.hooks.component import load_path
from neox_core.plan.planners import engine_planner
from neox_core.plan.runfile import ComponentRef, RunPlan, to_plain
from neox_core.plan.source import Source, source_of
from neox_core.untrusted import short

DEEPEST = 16
"""Depth of values that a message shows within a value."""


@frozen
class Change:
    """A value that differs. keys: with which it can be written. then, now: plain values, of the two runs."""

    keys: tuple[str, ...]
    then: Any
    now: Any


def changed_numbers(config: Config, plan: RunPlan, run: Mapping[str, Any], folder: str) -> Iterator[Problem]:
    """A warning for each key with which the steps of the run compute other numbers.

    run: run.json of the run that wrote the checkpoint in `folder`; whatever is not as a plan has it counts as changed.
    """
    now = to_plain(plan)
    for change in (*_in_fields(config, plan, now, run), *_in_engine(config, now, run)):
        key = next((key for key in change.keys if config.is_set(key)), change.keys[0])
        message = f"is {_shown(change.now)}, and was {_shown(change.then)} in the run that wrote {folder}"
        yield config.problem(f"{message}: the losses change", key, severity="warning")


def changes_numbers(config: Config, source: Source) -> bool:
    """Whether a field's keys say that they change numbers; those of a kind without a key count as such."""
    return any(_changes(config, key) == "numerics" for key in source.keys) or bool(source.kinds and not source.keys)


def _changes(config: Config, key: str) -> str:
    """What the key's setting says that it changes, or that of the block around it."""
    head, *inner = key.split(".")
    field = next((by_key(cls)[head] for cls in config.sections if head in by_key(cls)), None)
    for part in inner:
        block = by_key(block_of(field.type)) if field is not None else {}
        field = block.get(part, field)
    return "numerics" if field is None else field.info.changes


def _in_fields(config: Config, part: Any, now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[Change]:
    """part: of the plan, a class of its own; now: the same in plain values."""
    for field in attrs.fields(type(part)):
        source, value = source_of(field), getattr(part, field.name)
        if field.name not in then or source.apart:
            continue
        pair = now[field.name], then[field.name]
        if attrs.has(type(value)) and not isinstance(value, ComponentRef) and all(isinstance(x, dict) for x in pair):
            yield from _in_fields(config, value, *pair)
        elif changes_numbers(config, source):
            yield from _in_value(source, value, *pair)


def _in_engine(config: Config, now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[Change]:
    """What the engine is told: of the keys of a config what both runs have, and all that only the engine knows."""
    engine, stored = now["engine_component"], then.get("engine_component")
    if not isinstance(stored, Mapping) or stored.get("name") != engine["name"]:
        return
    here, there = (_by_key(config, each) for each in (now["engine"], then.get("engine")))
    for key in sorted(here.keys() | there.keys()):
        mine, theirs = here.get(key, {}), there.get(key, {})
        if key in mine and key in theirs:
            mine, theirs = mine[key], theirs[key]
        elif key in mine or key in theirs:  # a block that one of the two runs does not have
            continue
        if not same(mine, theirs) and _changes(config, key) == "numerics":
            yield Change((key,), theirs, mine)


def _by_key(config: Config, engine: Any) -> dict[str, dict[str, Any]]:
    """For each config key the values of `plan.engine` that it makes, by path: one of the same path, or several."""
    planner, found = engine_planner(config), dict[str, dict[str, Any]]()
    for path, value in _values(engine):
        key = planner.key_of(config, path)
        if key is not None:
            found.setdefault(key, {})[path] = value
    return found


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value within blocks, by its path."""
    if not isinstance(value, Mapping):
        yield path.removeprefix("."), value
        return
    for key, inner in value.items():
        yield from _values(inner, f"{path}.{key}")


def _in_value(source: Source, value: Any, now: Any, then: Any) -> Iterator[Change]:
    """value: None, a plain value, a component, or a tuple of components or of classes of a plan."""
    several = isinstance(value, tuple)
    values, plain, stored = (value, now, then) if several else ((value,), [now], [then])
    components = [each for each in values if isinstance(each, ComponentRef)]
    names = [
        each.get("name") if isinstance(each, dict) else None for each in (stored if isinstance(stored, list) else ())
    ]
    if components and [each.name for each in components] == names:
        for component, here, there in zip(components, plain, stored, strict=True):
            known = None if component.settings_class is None else load_path(component.settings_class)
            yield from _in_settings(source, known, here["settings"], there.get("settings"))
    elif not same(_compared(values, plain), _compared(values, stored)):
        keys = source.keys or tuple(each.name.replace("-", "_") for each in components) or source.kinds
        yield Change(keys, then, now)


def _in_settings(
    source: Source, cls: type | None, now: Mapping[str, Any], then: Any, block: str = ""
) -> Iterator[Change]:
    """Settings of one class that both runs have."""
    known = by_key(cls)
    for name in now.keys() & then.keys() if isinstance(then, dict) else ():
        field, path = known.get(name), f"{block}{name}"
        inner = None if field is None else block_of(field.type)
        if field is not None and field.info.changes != "numerics":
            continue
        if inner is not None and isinstance(now[name], dict) and isinstance(then[name], dict):
            yield from _in_settings(source, inner, now[name], then[name], f"{path}.")
        elif not same(now[name], then[name]):
            yield Change(source.inside(path), then[name], now[name])


def _compared(values: tuple[Any, ...], plain: Any) -> Any:
    """Plain values of a list without the fields that something else compares."""
    apart = {
        field.name
        for each in values
        if attrs.has(type(each))
        for field in attrs.fields(type(each))
        if source_of(field).apart
    }
    if not apart or not isinstance(plain, list):
        return plain
    return [{key: each[key] for key in each.keys() - apart} if isinstance(each, dict) else each for each in plain]


def _shown(value: Any) -> str:
    """In a line; a component without its settings."""
    return short(_in_words(value))


def _in_words(value: Any, depth: int = 0) -> str:
    if depth == DEEPEST:
        return "..."
    if isinstance(value, list):
        return f"[{', '.join(_in_words(each, depth + 1) for each in value)}]"
    if isinstance(value, dict) and {"kind", "name", "plugin", "version"} <= value.keys():
        return f"{value['name']} ({value['plugin']} {value['version']})"
    if isinstance(value, dict) and value.keys() == {"prefix", "weight"}:  # of a dataset
        return f"{value['prefix']} x {value['weight']}"
    if isinstance(value, dict):
        return ", ".join(_in_words(each, depth + 1) for each in value.values()) or "none"
    return json.dumps(value)
