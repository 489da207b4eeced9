"""`neox config diff`: the differences between two configs, or between a config and a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from neox_core.cli.notes import ON
from neox_core.cli.offered import loaded
from neox_core.errors import ConfigError
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_plain
from neox_core.plan.stored.saved import RUN, read_run
from neox_core.terminal import echo, echo_json, paint
from neox_reference.flat import flat, in_words
from neox_reference.origins import find_origins, section_rows

OWN = frozenset(
    {"run_dir", "debug", "checkpoint.resume", "format"}
)  # of the one start of a run, not of what it computes


@frozen
class Resolution:
    """Dotted plan path -> value and where that came from.

    sections: those of `values` that are keys of plugins' sections; None for a run, whose run.json does not hold them.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    sections: frozenset[str] | None = None

    def origin(self, path: str) -> str:
        """Where the value of a path, or of the block around it, comes from."""
        while path and path not in self.origins:
            path = path.rpartition(".")[0]
        return self.origins.get(path, "")


@click.command()
@click.argument("one", type=click.Path(readable=False), metavar="A")
@click.argument("other", type=click.Path(readable=False), metavar="B")
@ON
@click.option("--json", "as_json", is_flag=True, help="A list of objects: path, and value and origin of A and of B.")
def diff(one: str, other: str, cluster: str | None, as_json: bool) -> None:
    """Show what differs between A and B once both are resolved on one machine, and where each value comes from.

    Each is a config file, several with commas between them, a run.json, or the folder of a run or of a checkpoint.
    Exit 0: equal, 1: different.
    """
    a, b = resolution(one, cluster), resolution(other, cluster)
    paths = [path for path in dict.fromkeys((*a.values, *b.values)) if a.values.get(path) != b.values.get(path)]
    untold = OWN if a.sections is not None and b.sections is not None else OWN.union(a.sections or (), b.sections or ())
    rows = [
        {
            "path": path,
            "a": a.values.get(path),
            "a_origin": a.origin(path) if path in a.values else "not there",
            "b": b.values.get(path),
            "b_origin": b.origin(path) if path in b.values else "not there",
        }
        for path in paths
        if path not in untold
    ]
    if as_json:
        echo_json(rows)
    else:
        for row in rows:
            _show(row)
    raise SystemExit(1 if rows else 0)


def resolution(name: str, cluster: str | None = None) -> Resolution:
    """Resolve a config, or read the plan of a run. Raises ConfigError for a config that cannot be run or a folder
    without a run.
    """
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name == RUN:
        values = flat(read_run(folder, ConfigError))
        return Resolution(values, dict.fromkeys(values, str(folder / RUN)))
    files = [Path(each) for each in name.split(",")]
    resolved = prepare_run(files, catalog=loaded(), start=False, cluster=cluster)
    values, origins = flat(to_plain(resolved.plan)), find_origins(resolved, cluster)
    sections = tuple(section_rows(resolved))
    for section in sections:
        values |= section.values
        origins |= section.origins
    return Resolution(values, origins, frozenset(key for each in sections for key in each.values))


def _show(row: Mapping[str, Any]) -> None:
    echo(row["path"])
    for side, sign, colour in (("a", "-", "red"), ("b", "+", "green")):
        echo(paint(f"  {sign} {in_words(row[side])}", colour), f"  ({row[f'{side}_origin']})")
