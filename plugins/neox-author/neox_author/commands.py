"""`neox plugins info` and `neox plugins check`."""

from difflib import get_close_matches

import click

from neox_author.check import check_plugins
from neox_author.describe import describe
from neox_core.errors import PluginError
from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo, paint, readable


@click.command()
@click.argument("name")
def info(name: str) -> None:
    """Describe NAME: a component ("Adam"), one plugin's component ("neox-adam:Adam"), a config section or a plugin."""
    catalog = load_plugins()
    texts = list(describe(catalog, name))
    if not texts:
        names = {entry.component.name for entry in catalog.registry.entries()}
        names |= {report.plugin.id for report in catalog.reports}
        near = get_close_matches(name, sorted(names), 1) or [known for known in names if known.lower() == name.lower()]
        failed = "".join(f"\n  not loaded, and may offer it: plugin {report.line}" for report in catalog.failed())
        raise PluginError(
            f"nothing is called {name!r}{failed}",
            hint=f"did you mean {near[0]!r}?" if near else "`neox plugins list` shows all there is",
        )
    echo("\n\n".join(texts))


@click.command()
@click.pass_context
def check(ctx: click.Context) -> None:
    """Import everything that plugins offer, and report what is broken, incompatible or clashing: exit code 3 if any
    is.
    """
    catalog = load_plugins(again=True)
    faults = 0
    for finding in check_plugins(catalog):
        label = paint("fault:", "red", "bold") if finding.fault else paint("note:", "yellow")
        echo(label, f" {readable(finding.message)}")
        if finding.hint:
            echo(f"  {readable(finding.hint)}")
        faults += finding.fault
    offers = len(list(catalog.registry.entries())) + len(catalog.registry.sections)
    echo(f"{_count(len(catalog.reports), 'plugin')}, {_count(offers, 'offer')}, {_count(faults, 'fault')}")
    if faults:
        ctx.exit(PluginError.exit_code)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
