"""What is wrong with the installed plugins: the findings of `neox plugins check`."""

from collections.abc import Iterator
from difflib import get_close_matches

import click
from attrs import frozen

from neox_author.declaration import settings_faults
from neox_author.ops import installed_ops
from neox_author.try_imports import import_errors
from neox_author.try_rules import rule_faults
from neox_core.cli.main import SUBCOMMANDS
from neox_core.config.dialects import older_keys
from neox_core.config.report import spell
from neox_core.config.schema.convert import by_key
from neox_core.config.schema.owners import CORE, find_owners, named, named_section, two_owners
from neox_core.errors import PluginError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import load_path
from neox_core.hooks.install import how_to_get
from neox_core.hooks.registry import Entry, Registry


@frozen
class Finding:
    """One thing to know: a fault makes the check fail, anything else is a note."""

    message: str
    hint: str = ""
    fault: bool = True


def check_plugins(catalog: Catalog) -> Iterator[Finding]:
    """All findings, first those that keep a plugin from loading. Another process imports the targets."""
    for report in catalog.failed():
        yield Finding(f"plugin {report.line}", report.hint)
    yield from _switched_off(catalog)
    yield from _clashes(catalog)
    for entry in catalog.registry.entries():
        yield from _settings(f"{entry.kind} {entry.qualified}", entry.component.settings)
    for plugin, section in catalog.registry.sections:
        yield from _settings(f"config section {plugin.id}:{section.name}", section.settings)
    yield from _kernels_without_op(catalog)
    for problem in rule_faults(catalog):
        yield Finding(problem.message, problem.hint)
    yield from _imports(list(catalog.registry.entries()))


def _switched_off(catalog: Catalog) -> Iterator[Finding]:
    for report in catalog.reports:
        if report.status == "disabled":
            yield Finding(f"plugin {report.plugin.id} is {report.cause}", fault=False)
    for said, hint in catalog.misnamed():
        yield Finding(said, hint, fault=False)


def _clashes(catalog: Catalog) -> Iterator[Finding]:
    for entries in catalog.registry.clashes():
        owners = " and ".join(f"{entry.plugin.id} {entry.plugin.version}" for entry in entries)
        ways = " or ".join(f"`{entry.qualified}`" for entry in entries)
        message = f"{entries[0].kind} {entries[0].component.name!r} is offered by {owners}"
        yield Finding(message, f"write {ways}, or switch one off: NEOX_PLUGINS_DISABLE={entries[-1].plugin.id}")
    for entry in catalog.registry.entries("command"):
        if entry.component.name in SUBCOMMANDS:
            message = f"command {entry.qualified} {entry.plugin.version} has the name of a command of neox itself"
            yield Finding(message, f"call it as `neox {entry.qualified}`")
    yield from _not_in_groups(catalog.registry)
    yield from _key_clashes(catalog)


def _not_in_groups(registry: Registry) -> Iterator[Finding]:
    """Commands with a dot under what is not a group, so that no command line leads to them."""
    for entry in registry.entries("command"):
        above, dot, name = entry.component.name.rpartition(".")
        owners = registry.offers("command", above) if dot and above not in SUBCOMMANDS else ()
        targets = (
            [SUBCOMMANDS[above][0]] if dot and above in SUBCOMMANDS else [each.component.target for each in owners]
        )
        for target in targets:
            try:
                group = isinstance(load_path(target), click.Group)
            except PluginError:  # which `_imports` reports
                continue
            if not group:
                message = f"command {entry.qualified}: `neox {above}` is a command, not a group, so it has no {name!r}"
                yield Finding(message, f"rename it; `neox {entry.qualified}` calls it until then")


def _key_clashes(catalog: Catalog) -> Iterator[Finding]:
    """Keys with two owners. Where a config can select either owner, only an owner that it can never select is a
    fault.
    """
    by_sections = dict(catalog.registry.key_clashes())
    for key, sections in by_sections.items():
        named = " and ".join(f"{plugin.id} {plugin.version} (section {section.name})" for plugin, section in sections)
        way_out = f"NEOX_PLUGINS_DISABLE={sections[-1][0].id} switches one off"
        yield Finding(f"config key {key!r} is owned by {named}", way_out)
    for key, names, dead in _contested(catalog.registry):
        if dead or key not in by_sections:
            blocks = "uninstall one of the two, or switch it off with NEOX_PLUGINS_DISABLE"
            hint = blocks if dead else f"{blocks}; a component's settings may be in a block of its name"
            yield Finding(f"the config key {spell(key)} {two_owners(names)}", hint, fault=dead)


def _contested(registry: Registry) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """(key, its owners in words, whether one of them can never read it) for each key whose owners can both be in use.

    A config chooses one of the components of a kind, so these may share a key.
    """
    owners, older = find_owners(registry), older_keys(registry)
    for key in dict.fromkeys((*owners.section_of, *owners.components_of)):
        sections = [(owner, section) for owner, section in owners.sections if key in by_key(section.settings)]
        first = key in older or any(owner == CORE for owner, _ in sections)
        names = [named_section(*each) for each in sections] or ([older[key]] if key in older else [])
        kinds = {entry.kind: named(entry) for entry in reversed(owners.components_of.get(key, ()))}
        if len(names) + len(kinds) > 1:
            yield key, (*names, *reversed(kinds.values())), bool(first and any(owner != CORE for owner, _ in sections))


def _settings(owner: str, settings: type | None) -> Iterator[Finding]:
    for fault in settings_faults(settings) if settings else ():
        yield Finding(f"{owner}: {fault}")


def _kernels_without_op(catalog: Catalog) -> Iterator[Finding]:
    """Kernels of an op that no installed component has, so that nothing would use them."""
    ops = [op.name for op in installed_ops(catalog.registry)]
    for entry in catalog.registry.entries("kernel"):
        op, _, implementation = entry.component.name.partition(".")
        if not implementation:
            yield Finding(
                f"kernel {entry.qualified}: its name is not <op>.<implementation>", "rename it, for example swiglu.mine"
            )
        elif op not in ops:
            near = get_close_matches(op, ops, 1)
            hint = f"did you mean {near[0]}?" if near else "`neox kernels list` shows the ops there are"
            yield Finding(f"kernel {entry.qualified}: nothing installed has an op {op}", hint)


def _imports(entries: list[Entry]) -> Iterator[Finding]:
    for kind in sorted({entry.kind for entry in entries if not entry.definition.used}):
        yield Finding(f"this version of neox uses no {kind} yet; it only lists what plugins offer", fault=False)
    ready = []
    for entry in entries:
        if entry.component.missing():
            missing = entry.component.missing()
            hint = how_to_get(missing, entry.plugin.id)
            yield Finding(f"{entry.kind} {entry.qualified} needs {', '.join(missing)}", hint, fault=False)
        else:
            ready.append(entry)
    errors = import_errors([(entry.component.target, entry.definition.light) for entry in ready])
    for entry in ready:
        if errors[entry.component.target]:
            message = f"{entry.kind} {entry.qualified} {entry.plugin.version}: {errors[entry.component.target]}"
            yield Finding(message, f"install what it needs, or tell the author of {entry.plugin.id}")
