"""`neox config coverage`."""

from collections.abc import Sequence
from typing import Any

import click

from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo, echo_json
from neox_reference.coverage import Row, key_rows, name_rows, other_keys, total


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
