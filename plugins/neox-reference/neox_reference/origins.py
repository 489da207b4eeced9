"""Where each value of a plan came from: a place in a file, --set, a default, or what it was derived from."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from neox_core.config.problem import COMMAND_LINE
from neox_core.config.schema.structure import Config
from neox_core.plan.assemble import plain_settings
from neox_core.plan.resolve import Resolved
from neox_core.plan.runfile import ComponentRef, RunPlan, to_plain
from neox_core.plan.source import Source, source_of
from neox_reference.flat import flat


@frozen
class SectionRows:
    """Values and origins of a plugin's section by key, and whether the config writes any of them."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    written: bool


def find_origins(resolved: Resolved, cluster: str | None = None) -> dict[str, str]:
    """Dotted plan path -> its origin, for every value of the plan.

    cluster: what it was resolved for instead of this machine and a hostfile, "12x8".
    """
    config, plan = resolved.config, resolved.plan
    kernels = {f"model.kernels.{each.op}": (f"kernels.{each.op}", each.key) for each in plan.model.kernels}
    origins = {path: _origin(config, plan, path, kernels.get(path)) for path in flat(to_plain(plan))}
    if cluster is not None:
        given = f"--on {cluster}"
        for path, origin in origins.items():
            hosts = path.startswith("cluster.hosts")
            origins[path] = f"derived from {given}" if hosts else origin.replace("this machine", given)
    return origins


def section_rows(resolved: Resolved) -> Iterator[SectionRows]:
    """The keys of each section of a plugin."""
    config = resolved.config
    for _, section in resolved.catalog.registry.sections:
        rows = flat(plain_settings(config.sections[section.settings]))
        origins = {path: _written(config, (path,)) for path in rows}
        yield SectionRows(rows, {path: origin or "default" for path, origin in origins.items()}, any(origins.values()))


def source_at(plan: Any, path: str) -> tuple[Source, str]:
    """(source of the last field of a plan on a dotted path, what of the path is left, inside of the field's value)."""
    source, value, left = Source(), plan, path
    while attrs.has(type(value)) and not isinstance(value, ComponentRef):
        name, _, rest = left.partition(".")
        field = attrs.fields_dict(type(value)).get(name)
        if field is None:
            break
        source, value, left = source_of(field), getattr(value, name), rest
    return source, left


def _origin(config: Config, plan: RunPlan, path: str, keys: tuple[str, ...] | None) -> str:
    """keys: with which it can be written, where its field does not tell."""
    source, inside = source_at(plan, path)
    setting = f".{inside}".partition(".settings.")[2]
    written = _written(config, keys or (source.inside(setting) if setting else source.keys))
    return written or (f"derived from {source.derived}" if source.derived and not setting else "default")


def _written(config: Config, keys: tuple[str, ...]) -> str:
    """Where the first of the keys that is written is; "" where none is."""
    for key in keys:
        if key and config.is_set(key):
            return "set by --set" if config.origin(key) == COMMAND_LINE else f"set in {config.origin(key)}"
    return ""
