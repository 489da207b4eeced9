"""The commands that plugins offer: in `neox` by their names, in a group such as `neox config` behind its own."""

from collections.abc import Container
from typing import TYPE_CHECKING

import click

from neox_core.errors import PluginError

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry

OFFER = "neox_core.offer"
"""Where a click context keeps the plugin's offer that its command is."""
GROUPS = "config.", "plugins."
"""How the names of commands begin that belong to a group."""


def offered(catalog: "Catalog | None", own: Container[str], group: str = "") -> "dict[str, Entry]":
    """The commands of plugins by the name that calls them: qualified where two plugins offer the same one.

    own: names that are taken. group: whose commands; "" for those that belong to none.
    """
    if catalog is None:
        return {}
    taken = {entry.qualified for clash in catalog.registry.clashes() for entry in clash}
    found = {}
    for entry in catalog.registry.entries("command"):
        name = entry.component.name
        if name.startswith(group) if group else not name.startswith(GROUPS):
            short = name.removeprefix(group)
            found[entry.qualified if entry.qualified in taken or short in own else short] = entry
    return found


def catalog_for_help() -> "Catalog | None":
    """None when what switches plugins off cannot be read: help must work, and any other command reports it."""
    from neox_core.hooks.loader import load_plugins

    try:
        return load_plugins()
    except PluginError:
        return None


def load_offer(ctx: click.Context, entry: "Entry") -> object:
    """What a plugin offers as a command; an error that it raises is then blamed on the plugin."""
    from neox_core.hooks.install import require_modules  # with the loader 50 ms that others need not pay

    require_modules(entry)
    command = entry.load()
    ctx.meta[OFFER] = entry
    return command


def package_of(command: str) -> str:
    """How to install the first-party plugin that offers a command; "" where there is none."""
    from neox_core.hooks import install

    found = install.package_of("command", command)
    return f"{found} offers it: {install.how_to_install(found)}" if found else ""


class OpenGroup(click.Group):
    """A group inside `neox` that plugins add commands to: `config.x` is `neox config x`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *offered(catalog_for_help(), self.commands, f"{self.name}.")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        from neox_core.hooks.loader import load_plugins

        entry = offered(load_plugins(), self.commands, f"{self.name}.").get(cmd_name)
        if entry is None and (package := package_of(f"{self.name}.{cmd_name}")):
            raise click.UsageError(f"no command {cmd_name!r}; {package}", ctx)
        command = load_offer(ctx, entry) if entry is not None else None
        if entry is not None and not isinstance(command, click.Command):
            raise PluginError(f"command {entry.qualified} is {command!r}, not a click command")
        return command if isinstance(command, click.Command) else None
