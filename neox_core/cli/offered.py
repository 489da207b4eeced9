"""The commands that plugins offer: `x` is `neox x`, and `data.x` is `neox data x`, whoever offers the group."""

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import click

from neox_core.errors import PluginError

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry

NOTES = "neox_core.notes"
"""Where a click context keeps lines that `neox plugins list` shows."""
CATALOG = "neox_core.catalog"
"""Where it keeps the plugins."""


def offered(catalog: "Catalog | None", own: Container[str], group: str = "") -> "dict[str, Entry]":
    """The commands of plugins by the name that calls them: qualified where two plugins offer the same one.

    own: names that are taken. group: whose commands, with its dot; "" for those that belong to none.
    """
    if catalog is None:
        return {}
    taken = {entry.qualified for clash in catalog.registry.clashes() for entry in clash}
    found = {}
    for entry in catalog.registry.entries("command"):
        name = entry.component.name
        if name.startswith(group) if group else "." not in name:
            short = name.removeprefix(group)
            found[entry.qualified if entry.qualified in taken or short in own else short] = entry
    return found


def groups(catalog: "Catalog | None", own: Container[str]) -> dict[str, str]:
    """The groups that consist of nothing but commands of plugins, and whose these are. own: names that are taken."""
    if catalog is None:
        return {}
    found: dict[str, list[str]] = {}
    for entry in catalog.registry.entries("command"):
        group, dot, _ = entry.component.name.partition(".")
        if dot and group not in own and not catalog.registry.offers("command", group):
            found.setdefault(group, []).append(entry.plugin.id)
    return {group: ", ".join(dict.fromkeys(plugins)) for group, plugins in found.items()}


def loaded() -> "Catalog":
    """The plugins, which a command line loads once."""
    from neox_core.hooks.loader import load_plugins

    context = click.get_current_context(silent=True)
    kept: dict[str, Any] = {} if context is None else context.meta
    kept[CATALOG] = catalog = kept.get(CATALOG) or load_plugins()
    return catalog


def if_loaded() -> "Catalog | None":
    """None when what switches plugins off cannot be read: help must work, and any other command reports it."""
    try:
        return loaded()
    except PluginError:
        return None


def load_offer(entry: "Entry") -> click.Command:
    """The command that a plugin offers."""
    from neox_core.hooks.install import require_modules  # with the loader 50 ms that others need not pay

    require_modules(entry)
    command = entry.load()
    if not isinstance(command, click.Command):
        raise PluginError(f"command {entry.qualified} is {command!r}, not a click command")
    return command


def package_of(command: str) -> str:
    """How to install the first-party plugin that offers a command; "" where there is none."""
    from neox_core.hooks import install

    found = install.package_of("command", command)
    return f"{found} offers it: {install.how_to_install(found)}" if found else ""


def opened(name: str, group: click.Group) -> "OpenGroup":
    """The group of a plugin, with the commands that other plugins add to it. name: under which it is offered."""
    return OpenGroup(
        name,
        inner=group,
        callback=group.callback,
        params=group.params,
        help=group.help,
        epilog=group.epilog,
        context_settings=group.context_settings,
        invoke_without_command=group.invoke_without_command,
        no_args_is_help=group.no_args_is_help,
    )


class OpenGroup(click.Group):
    """A group inside `neox` that plugins add commands to: `config.x` is `neox config x`.

    inner: the group of a plugin that has commands of its own already
    """

    def __init__(self, *args: Any, inner: click.Group | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._inner = inner

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the group's own commands, then those of plugins."""
        own = self._own(ctx)
        return [*own, *offered(if_loaded(), own, f"{self.name}.")]

    def _own(self, ctx: click.Context) -> list[str]:
        return self._inner.list_commands(ctx) if self._inner else super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The group's own command of a name, or a plugin's. Raises PluginError, or UsageError that names a package."""
        own = self._inner.get_command(ctx, cmd_name) if self._inner else super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entry = offered(loaded(), self._own(ctx), f"{self.name}.").get(cmd_name)
        others = package_of(str(self.name)) if self._inner is None else ""
        if entry is None and (package := package_of(f"{self.name}.{cmd_name}") or others):
            raise click.UsageError(f"no command {cmd_name!r}; {package}", ctx)
        return None if entry is None else load_offer(entry)
