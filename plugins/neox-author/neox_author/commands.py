"""`neox plugins info`, `check`, `new` and `test`."""

from difflib import get_close_matches
from pathlib import Path

import click
from attrs import asdict

from neox_author.check import check_plugins
from neox_author.describe import as_objects, describe
from neox_author.kit import results_of
from neox_author.new import kind_of, write_plugin
from neox_core.errors import PluginError
from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo, echo_json, one_line, paint, readable

JSON = click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")


@click.command()
@click.argument("name")
@JSON
def info(name: str, as_json: bool) -> None:
    """Describe NAME: a component ("Adam"), one plugin's component ("neox-adam:Adam"), a config section or a plugin."""
    catalog = load_plugins()
    found = list(as_objects(catalog, name))
    if not found:
        names = {entry.component.name for entry in catalog.registry.entries()}
        names |= {report.plugin.id for report in catalog.reports}
        near = get_close_matches(name, sorted(names), 1) or [known for known in names if known.lower() == name.lower()]
        failed = "".join(f"\n  not loaded, and may offer it: plugin {report.line}" for report in catalog.failed())
        raise PluginError(
            f"nothing is called {name!r}{failed}",
            hint=f"did you mean {near[0]!r}?" if near else "`neox plugins list` shows all there is",
        )
    if as_json:
        echo_json(found)
    else:
        echo("\n\n".join(describe(catalog, name)))


@click.command()
@JSON
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Import everything that plugins offer, and report what is broken, incompatible or clashing: exit code 3 if any
    is.
    """
    catalog = load_plugins(again=True)
    offers = len(list(catalog.registry.entries())) + len(catalog.registry.sections)
    faults = 0
    if as_json:
        findings = list(check_plugins(catalog))
        faults = sum(each.fault for each in findings)
        found = [{"fault": each.fault, "message": each.message, "hint": each.hint} for each in findings]
        echo_json({"plugins": len(catalog.reports), "offers": offers, "faults": faults, "findings": found})
        ctx.exit(PluginError.exit_code if faults else 0)
    for finding in check_plugins(catalog):
        label = paint("fault:", "red", "bold") if finding.fault else paint("note:", "yellow")
        echo(label, f" {readable(finding.message)}")
        if finding.hint:
            echo(f"  {readable(finding.hint)}")
        faults += finding.fault
    echo(f"{_count(len(catalog.reports), 'plugin')}, {_count(offers, 'offer')}, {_count(faults, 'fault')}")
    if faults:
        ctx.exit(PluginError.exit_code)


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--dir", "parent", default=".", type=click.Path(path_type=Path), help="Where to make the folder NAME.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
def new(kind: str, name: str, parent: Path, as_json: bool) -> None:
    """Write a plugin that offers a component of KIND, in a new folder NAME: a package that passes its own tests."""
    catalog = load_plugins()
    folder, files = write_plugin(catalog, kind_of(catalog, kind), name, parent)
    if as_json:
        echo_json({"folder": str(folder), "files": [str(each) for each in files]})
        return
    echo("\n".join(f"{folder / each}" for each in files))
    echo(f"now `neox plugins test {folder}`; then change what it computes, and `pip install -e {folder}`")


@click.command()
@click.argument("plugin", metavar="[PATH]", default=".")
@click.option("--limit", type=click.IntRange(1), default=300, show_default=True, help="Seconds for one component.")
@JSON
@click.pass_context
def test(ctx: click.Context, plugin: str, limit: int, as_json: bool) -> None:
    """Hold everything that a plugin offers to the contract of its kind: exit code 3 where a clause does not hold.

    PATH is the folder of the plugin, which need not be installed, or the name of an installed one. It is loaded in
    another process.
    """
    if as_json:
        results = list(results_of(plugin, limit))
        echo_json([asdict(each) for each in results])
        ctx.exit(PluginError.exit_code if any(each.fault for each in results) else 0)
    counts = {"ok": 0, "failed": 0, "not applicable": 0}
    for result in results_of(plugin, limit):
        echo(paint(one_line(f"{result.kind or 'plugin'} {result.name}"), "bold"))
        rows = [
            ("not applicable" if why else "ok", f"{clause}: {why}" if why else clause) for clause, why in result.clauses
        ]
        for label, text in [*rows, *([("failed", result.fault)] if result.fault else [])]:
            counts[label] += 1
            colour = {"ok": "green", "failed": "red"}.get(label, "dim")
            echo("  ", paint(f"{label:<16}", colour), one_line(readable(text)))
        if result.fault:
            echo("  what comes after it in the contract was not tried")
    echo(", ".join(f"{number} {label}" for label, number in counts.items()))
    if counts["failed"]:
        ctx.exit(PluginError.exit_code)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
