"""What neox-author offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    commands = "neox_author.commands"
    return [
        Component("plugins.info", f"{commands}:info", summary="Describe a component, a config section or a plugin."),
        Component("plugins.check", f"{commands}:check", summary="Import all that plugins offer, and report faults."),
        Component("plugins.new", f"{commands}:new", summary="Write a plugin that passes its own tests."),
        Component("plugins.test", f"{commands}:test", summary="Hold what a plugin offers to its contracts."),
    ]
