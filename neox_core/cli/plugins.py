"""`neox plugins`: what is installed, what it offers, and what is wrong with it."""

import sys
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import groupby

import click
from attrs import asdict, frozen

from neox_core.cli.offered import NOTES, OpenGroup, loaded
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.registry import Registry
from neox_core.terminal import echo, echo_json, one_line

SECTION, KIND = "config section", "kind"


@frozen
class Row:
    """A line of the list. kind and name are empty for a plugin that could not be loaded."""

    kind: str
    name: str
    plugin: str
    version: str
    status: str
    summary: str


@click.group(cls=OpenGroup)
def plugins() -> None:
    """List, describe and check the installed plugins."""


@plugins.command("list")
@click.option("--kind", metavar="KIND", help="Only this kind (failed plugins are always shown).")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects with the columns as keys.")
@click.pass_context
def list_plugins(ctx: click.Context, kind: str | None, as_json: bool) -> None:
    """List what each plugin offers, and the plugins that offer nothing because they failed.

    In a terminal a table; otherwise a line each: kind, name, plugin, version, status and summary, separated by tabs.
    """
    catalog = loaded()
    if kind is not None:
        kind = _kind(kind, catalog.registry)
    rows = [row for row in _rows(catalog) if kind is None or row.kind in ("", kind)]
    for line in ctx.meta.get(NOTES, ()):
        echo(f"note: {one_line(line)}", err=True)
    for said, hint in catalog.misnamed():
        echo(f"warning: {said}; {hint}", err=True)
    if as_json:
        echo_json([asdict(row) for row in rows])
    elif not rows:
        echo("no plugins" if kind is None else f"no plugin offers a {kind}", err=True)
        if not catalog.reports:
            echo("run `pip install ./plugins/neox-*` in the repository of neox for the first-party ones", err=True)
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for row in rows:
            echo("\t".join(map(one_line, (row.kind, row.name, row.plugin, row.version, row.status, row.summary))))


def _kind(value: str, registry: Registry) -> str:
    """The name of a kind that is written with spaces, hyphens or underscores."""
    spelled, known = value.replace("-", " ").replace("_", " "), [*registry.kinds, SECTION, KIND]
    if spelled not in known:
        near = get_close_matches(spelled, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"kinds: {', '.join(known)}"
        raise click.BadParameter(f"{value!r} is not a kind; {hint}", param_hint="'--kind'")
    return spelled


def _rows(catalog: Catalog) -> Iterator[Row]:
    registry = catalog.registry
    clashing = {entry for entries in registry.clashes() for entry in entries}
    for entry in registry.entries():
        component, plugin = entry.component, entry.plugin
        missing = component.missing()
        status = "clash" if entry in clashing else f"needs {', '.join(missing)}" if missing else "ok"
        if status == "ok" and not entry.definition.used:
            status = "not used yet"
        yield Row(entry.kind, component.name, plugin.id, plugin.version, status, component.summary)
    for name, plugin in registry.definers.items():
        kind = registry.kinds[name]
        chosen = f", chosen by {kind.key.replace('_', '-')}" if kind.key else ""
        yield Row(KIND, name, plugin.id, plugin.version, "ok", f"offered by {kind.hook}{chosen}")
    contested = [owned for _, owners in registry.key_clashes() for owned in owners]
    for plugin, section in sorted(registry.sections, key=lambda owned: (owned[1].name, owned[0].id)):
        status = "clash" if (plugin, section) in contested else "ok"
        yield Row(SECTION, section.name, plugin.id, plugin.version, status, section.summary)
    for report in catalog.reports:
        if report.status != "ok":
            yield Row("", "", report.plugin.id, report.plugin.version, report.status, report.cause)


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console  # 50 ms that only a terminal needs
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "plugin", "version"):
        table.add_column(column, no_wrap=True)
    table.add_column("status")
    table.add_column("summary", ratio=1)
    for kind, group in groupby(rows, lambda row: row.kind):
        table.add_row(Text(kind or "offer nothing", "bold cyan"))
        for row in group:
            style = {"ok": "green", "not used yet": "dim", "disabled": "dim"}.get(row.status, "red")
            cells = (f"  {row.name}", row.plugin, row.version, row.summary)
            name, plugin, version, summary = (Text(one_line(cell)) for cell in cells)
            table.add_row(name, plugin, version, Text(row.status, style), summary)
    console = Console()
    console.print(table)
    if any(row.status == "clash" for row in rows):
        console.print(Text("clash: write the plugin too, as in plugin:name; `neox plugins check` shows more", "red"))
    if any(row.status == "not used yet" for row in rows):
        console.print(Text("not used yet: this version of neox does not use this kind", "dim"))
