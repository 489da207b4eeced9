"""What neox-data offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    return [Component("data", "neox_data.commands:data", summary="Turn text into datasets of tokens.")]
