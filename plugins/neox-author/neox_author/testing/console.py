"""The check of a command: it is one, and tells what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.testing import CliRunner

from neox_author.testing.clauses import clauses, hold

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog


@clauses
def check_command(catalog: Catalog, name: str) -> None:
    """What the hook `neox_commands` asks of a command. Raises AssertionError with what does not hold."""
    target = catalog.find("command", name).load()
    hold(isinstance(target, click.Command), f"a command is a click.Command; it is a {type(target).__name__}")
    shown = CliRunner().invoke(target, ["--help"])
    hold(shown.exit_code == 0 and bool(target.help), "--help tells what it does: it has a docstring")
    wrong = CliRunner().invoke(target, ["--no-such-option"])
    hold(wrong.exit_code == 2, "an option that it does not have is a usage error")
