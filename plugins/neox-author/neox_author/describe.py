"""The text of `neox plugins info`: everything known about one name."""

from collections.abc import Iterator
from textwrap import indent
from typing import Any

from neox_author.in_words import type_in_words
from neox_author.ops import Op, installed_ops
from neox_author.signature import signature_of
from neox_core.config.schema.convert import Field, block_of, fields_of, shown
from neox_core.hooks.catalog import Catalog, Report
from neox_core.hooks.component import Component, ConfigSection
from neox_core.hooks.registry import Entry, PluginInfo


def describe(catalog: Catalog, name: str) -> Iterator[str]:
    """A text for each component, config section and plugin called `name`, which may be qualified by its plugin."""
    owner, _, bare = name.rpartition(":")
    for entry in catalog.registry.entries():
        if entry.component.name == bare and owner in ("", entry.plugin.id):
            yield _component(catalog, entry)
    for plugin, section in catalog.registry.sections:
        if section.name == bare and owner in ("", plugin.id):
            yield _section(catalog, plugin, section)
    for op in installed_ops(catalog.registry):
        if op.name == bare and not owner:
            yield _op(catalog, op)
    report = catalog.report(owner or bare)
    if report is not None and (not owner or report.status != "ok"):
        yield _plugin(catalog, report)


def as_objects(catalog: Catalog, name: str) -> Iterator[dict[str, Any]]:
    """The same for programs: an object for each, whose member `is` says what it is."""
    owner, _, bare = name.rpartition(":")
    for entry in catalog.registry.entries():
        component = entry.component
        if component.name == bare and owner in ("", entry.plugin.id):
            about: dict[str, Any] = {"is": entry.kind, "name": component.name, "summary": component.summary}
            about |= _from(entry.plugin)
            about |= {"target": component.target, "needs": list(component.needs), "missing": list(component.missing())}
            yield about | {"settings": _settings_as_objects(component.settings)}
    for plugin, section in catalog.registry.sections:
        if section.name == bare and owner in ("", plugin.id):
            about = {"is": "config section", "name": section.name, "summary": section.summary, **_from(plugin)}
            yield about | {"settings": _settings_as_objects(section.settings)}
    for op in installed_ops(catalog.registry):
        if op.name == bare and not owner:
            yield {"is": "op", "name": op.name, "of": list(op.owners), "reference": op.reference}
    report = catalog.report(owner or bare)
    if report is not None and (not owner or report.status != "ok"):
        about = {"is": "plugin", "name": report.plugin.id, **_from(report.plugin), "status": report.status}
        about |= {"cause": report.cause, "hint": report.hint}
        offers = [entry for entry in catalog.registry.entries() if entry.plugin.id == report.plugin.id]
        yield about | {"offers": [{"kind": entry.kind, "name": entry.component.name} for entry in offers]}


def _from(plugin: PluginInfo) -> dict[str, str]:
    return {"plugin": plugin.id, "version": plugin.version}


def _settings_as_objects(settings: type | None) -> list[dict[str, str]]:
    rows = [] if settings is None else _setting_rows(settings, "_", "")
    return [dict(zip(("name", "type", "default", "help"), row, strict=True)) for row in rows]


def _component(catalog: Catalog, entry: Entry) -> str:
    component, kind = entry.component, entry.definition
    others = [other for other in catalog.registry.offers(entry.kind, component.name) if other != entry]
    lines = [_title(f"{entry.kind} {component.name}", component.summary)]
    lines.append(f"  plugin    {entry.plugin.id} {entry.plugin.version}")
    lines.append(f"  target    {component.target}")
    written = entry.qualified if others else component.name
    if not kind.used:
        lines.append("  use       none yet: this version of neox does not use this kind")
    elif entry.kind == "command":
        group, dot, rest = written.partition(".")
        lines.append(f"  use       neox {group} {rest}" if dot and ":" not in group else f"  use       neox {written}")
    elif kind.key:
        lines.append(f"  use       {kind.key.replace('_', '-')}: {f'[{written}]' if kind.many else written}")
    if others:
        lines.append(f"  clash     offered too as {', '.join(other.qualified for other in others)}")
    for name, reference in component.ops:
        lines.append(f"  op        {name}, as {_called(reference)}")
    if entry.kind == "kernel":
        lines += _op_of_kernel(catalog, component)
    if component.needs:
        missing = component.missing()
        needs = (f"{name} (not installed)" if name in missing else name for name in component.needs)
        lines.append(f"  needs     {', '.join(needs)}")
    if entry.kind == "optimizer":
        lines.append(f"  zero      stages {', '.join(map(str, component.zero_stages))}")
        lines += _optimizer(component)
    if component.settings is None:
        lines.append("  settings  none")
    else:
        lines.append(f"  settings  {f'in {kind.settings_at}' if kind.settings_at else 'keys of the config'}")
        lines += _settings(component.settings, "-" if not kind.settings_at else "_")
    return "\n".join(lines)


def _op(catalog: Catalog, op: Op) -> str:
    kernels = [each for each in catalog.registry.entries("kernel") if each.component.name.partition(".")[0] == op.name]
    signature = signature_of(op.reference)
    lines = [f"op {op.name}", f"  of        {', '.join(op.owners)}", f"  reference {op.reference}"]
    lines.append(f"  kernels   {', '.join(each.qualified for each in kernels) or 'none'}")
    if signature is not None:
        lines += [f"  called    {signature.call}", *indent(signature.help, "    ").splitlines()]
    return "\n".join(lines)


def _op_of_kernel(catalog: Catalog, component: Component) -> Iterator[str]:
    name = component.name.partition(".")[0]
    for op in installed_ops(catalog.registry):
        if op.name == name:
            yield f"  op        {name}, called like {_called(op.reference)}"


def _called(reference: str) -> str:
    signature = signature_of(reference)
    return reference if signature is None else f"{reference.partition(':')[0]}:{signature.call}"


def _optimizer(component: Component) -> Iterator[str]:
    if component.whole_parameters:
        yield "  sees      whole parameters, so not with model-parallel-size above 1"
    yield f"  devices   {', '.join(component.devices)}"
    yield f"  precision {', '.join(component.precisions)}"
    if component.state_numbers is not None:
        element, side = component.state_numbers
        words = [f"{element:g} for each element"] if element else []
        words += [f"{side:g} for each row and column"] if side else []
        yield f"  state     numbers of a parameter, at most: {', '.join(words) or 'none'}"


def _section(catalog: Catalog, plugin: PluginInfo, section: ConfigSection) -> str:
    lines = [_title(f"config section {section.name}", section.summary), f"  plugin    {plugin.id} {plugin.version}"]
    for key, owners in catalog.registry.key_clashes():
        if (plugin, section) in owners:
            others = [f"{owner.id}:{other.name}" for owner, other in owners if (owner, other) != (plugin, section)]
            lines.append(f"  clash     the key {key!r} is owned by {', '.join(others)} too")
    return "\n".join([*lines, "  settings  keys of the config", *_settings(section.settings, "-")])


def _plugin(catalog: Catalog, report: Report) -> str:
    plugin = report.plugin
    lines = [f"plugin {plugin.id}", f"  version   {plugin.version}", f"  status    {report.status}"]
    if report.cause:
        lines.append(f"  cause     {report.cause}")
    if report.hint:
        lines.append(f"  hint      {report.hint}")
    lines.append(f"  module    {plugin.module}")
    for kind, definer in catalog.registry.definers.items():
        if definer.id == plugin.id:
            lines.append(f"  defines   kind {kind}, by the hook {catalog.registry.kinds[kind].hook}")
    for entry in catalog.registry.entries():
        if entry.plugin.id == plugin.id:
            lines.append(f"  offers    {entry.kind} {entry.component.name}")
    for owner, section in catalog.registry.sections:
        if owner.id == plugin.id:
            lines.append(f"  offers    config section {section.name}")
    return "\n".join(lines)


def _title(name: str, summary: str) -> str:
    return f"{name}: {summary}" if summary else name


def _settings(settings: type, hyphen: str, block: str = "") -> list[str]:
    """Name, type, default, help of each setting, in columns; those of a block by their dotted path."""
    rows = list(_setting_rows(settings, hyphen, block))
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return [
        "    " + "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]).rstrip()
        for row in rows
    ] or ["    none"]


def _setting_rows(settings: type, hyphen: str, block: str) -> Iterator[tuple[str, str, str, str]]:
    for field in fields_of(settings):
        name = block + (field.name.replace("_", hyphen) if not block else field.name)
        inner = block_of(field.type)
        if inner is not None:
            yield from _setting_rows(inner, hyphen, f"{name}.")
            continue
        unit = f" [{field.info.unit}]" if field.info.unit else ""
        yield name, type_in_words(field.type).replace("`", ""), _default(field), field.info.help + unit


def _default(field: Field) -> str:
    if field.required:
        return "required"
    value = field.default
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    return value if isinstance(value, str) and value else shown(value)
