"""`neox config migrate` and `neox config coverage`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from neox_core.cli.notes import say
from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo, echo_json
from neox_gpt_neox.coverage import Row, key_rows, name_rows, other_keys, total
from neox_gpt_neox.migrate import migrate as migrated


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; else to the terminal.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when FILE is not in today's spelling.")
def migrate(files: tuple[Path, ...], out: Path | None, check: bool) -> None:
    """Rewrite YAML files, GPT-NeoX's too, as one file in today's spelling; comments and order are kept.

    A key that this version does not have stays, with a comment that gives the reason. TOML and JSON are refused: only
    YAML is read with its comments. `neox config check` notes each older spelling in them.
    """
    new = migrated(files, load_plugins())
    if check:
        if len(files) != 1 or files[0].read_text(encoding="utf-8-sig") != new.text:
            say(new.problems)
            echo(f"{', '.join(map(str, files))}: not in today's spelling", err=True)
            raise SystemExit(1)
        return
    say(new.problems)
    if out is None:
        echo(new.text, end="")
    else:
        out.write_text(new.text, encoding="utf-8")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def coverage(as_json: bool) -> None:
    """Count the documents' parameters and names that this version has, and those that it only knows."""
    registry = load_plugins().registry
    keys, names = key_rows(registry), name_rows(registry)
    if as_json:
        echo_json({"parameters": _counts(keys), "other_keys": other_keys(registry), "names": _counts(names)})
        return
    _table("parameters", keys)
    echo(f"\nand {other_keys(registry)} keys that are in none of the documents\n")
    _table("names", names)


def _counts(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        row.name: {"implemented": row.implemented, "older_spelling": row.older, "known_only": row.known_only}
        for row in (*rows, total(rows))
    }


def _table(title: str, rows: Sequence[Row]) -> None:
    width = max(len(row.name) for row in rows)
    echo(f"{title:<{width}}  implemented  older spelling  known only  total")
    for row in (*rows, total(rows)):
        echo(f"{row.name:<{width}}  {row.implemented:>11}  {row.older:>14}  {row.known_only:>10}  {row.total:>5}")
