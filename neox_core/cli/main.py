"""The `neox` command: a table of subcommands, each imported when it is called, and those that plugins offer."""

import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from neox_core.cli.offered import OpenGroup, groups, if_loaded, load_offer, loaded, offered, opened, package_of
from neox_core.errors import UsageError, in_words, nobody_reads, report
from neox_core.hooks.blame import blame
from neox_core.hooks.component import load_path
from neox_core.terminal import echo, one_line, readable

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog


ONE_FILE = "neox.one_file"
"""The group of the entry point of a package that makes plugins of the files in a folder, for this process and those
that it starts. It leaves a line for each in the click context, under `offered.NOTES`.
"""

SUBCOMMANDS = {
    "train": ("neox_core.cli.train:train", "Train a model from one or more config files."),
    "config": ("neox_core.cli.config:config", "Check config files, show the plan that follows from them."),
    "plugins": ("neox_core.cli.plugins:plugins", "List, describe and check the installed plugins."),
}
"""Where a subcommand lives, and its line in `neox --help`."""


class NeoxGroup(click.Group):
    """Imports a subcommand when it is called, asks the plugins for one that it does not know, and ends a process
    with the exit code of the error: a NeoxError's own, 2 for a wrong command line, 130 for Ctrl-C.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the subcommands, of the plugins' commands, and of groups that consist of these."""
        catalog = if_loaded()
        return [*SUBCOMMANDS, *offered(catalog, SUBCOMMANDS), *groups(catalog, SUBCOMMANDS)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, from the one-line helps, so that it imports no subcommand."""
        lines, catalog = [(name, told) for name, (_, told) in SUBCOMMANDS.items()], if_loaded()
        for name, entry in offered(catalog, SUBCOMMANDS).items():
            lines.append((name, one_line(f"{entry.component.summary} ({entry.plugin.id})".lstrip())))
        lines += [(name, f"A group of commands ({plugins})") for name, plugins in groups(catalog, SUBCOMMANDS).items()]
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported. Raises UsageError where there is none, PluginError for what is not one."""
        if cmd_name in SUBCOMMANDS:
            own: click.Command = load_path(SUBCOMMANDS[cmd_name][0])
            return own
        catalog = loaded()
        if cmd_name in groups(catalog, SUBCOMMANDS):
            return OpenGroup(cmd_name)
        if ":" not in cmd_name and not catalog.registry.offers("command", cmd_name):
            self._refuse(ctx, cmd_name, catalog)
        entry = catalog.find("command", cmd_name)
        command = load_offer(entry)
        return opened(entry.component.name, command) if isinstance(command, click.Group) else command

    def _refuse(self, ctx: click.Context, name: str, catalog: "Catalog") -> NoReturn:
        near = get_close_matches(name, self.list_commands(ctx), 1)
        way_out = package_of(name) or (f"did you mean {near[0]!r}?" if near else "`neox --help` lists all commands")
        failed = "".join(f"\n  not loaded, and may offer it: plugin {report.line}" for report in catalog.failed())
        raise click.UsageError(f"no command {name!r}; {way_out}{failed}", ctx)

    def invoke(self, ctx: click.Context) -> None:
        """As click's, which does not take a command's result as the exit code, and takes a closed pipe as code 1."""
        try:
            super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(nobody_reads())

    def main(  # type: ignore[override]  # click has overloads for its standalone mode
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run a command line, by default that of this process, and exit. An exception of a plugin's code names it."""
        extra["standalone_mode"] = False
        args = sys.argv[1:] if args is None else args
        try:
            _require_text(args)
            code = super().main(args, prog_name or "neox", **extra)
        except click.ClickException as error:
            said = StringIO()
            error.show(said)
            echo(readable(said.getvalue()), err=True, end="")
            code = error.exit_code
        except click.Abort:
            code = 130
        except Exception as error:
            told = in_words(error) or blame(error)
            if told is None:
                raise
            code = report(told, error)
        sys.exit(code if isinstance(code, int) else 0)


def _require_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8: Python passes their bytes as lone surrogates, which cannot be written."""
    for number, argument in enumerate(arguments, 1):
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            said = f"argument {number} is not UTF-8: {argument!r}"
            raise UsageError(said, hint="write it, or rename the file, in UTF-8")


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ["NEOX_DEBUG"] = "1"  # for the processes that the command starts


def _use_folder(ctx: click.Context, parameter: click.Parameter, folder: Path | None) -> None:
    if folder is not None:
        from importlib.metadata import entry_points

        point = next(iter(entry_points(group=ONE_FILE)), None)
        if point is None:
            message = "--plugins-dir: no installed package reads plugins of one file"
            raise UsageError(message, hint="docs/plugins/one-file.md names one")
        point.load()(ctx, folder)


@click.group(cls=NeoxGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show tracebacks.")
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path, file_okay=False),
    expose_value=False,
    callback=_use_folder,
    help="A folder of plugins that are one file each, *.py.",
)
@click.version_option(package_name="neox-core", prog_name="neox")
def neox() -> None:
    """Pretrain GPT-style language models with DeepSpeed, from one YAML file."""


def main() -> NoReturn:
    """The console script."""
    gc.set_threshold(100_000)  # imports make no garbage, and looking for it takes 15 ms
    if None in (sys.stdin, sys.stdout, sys.stderr):  # closed by who started this: a file would get such a number
        while (nowhere := os.open(os.devnull, os.O_RDWR)) < 2:
            pass
        sys.stdout, sys.stderr = (each or os.fdopen(nowhere, "w") for each in (sys.stdout, sys.stderr))
    neox.main()
