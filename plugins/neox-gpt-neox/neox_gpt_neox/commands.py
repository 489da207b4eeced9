"""`neox config migrate`."""

from pathlib import Path

import click

from neox_core.cli.notes import FILES, say
from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo
from neox_gpt_neox.migrate import migrate as migrated


@click.command()
@FILES
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
