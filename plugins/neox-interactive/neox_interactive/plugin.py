"""Offers `neox completion`. `neox_core.load`, `train` and `metrics` are entry points of the group `neox.python`."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "completion",
            "neox_interactive.completion:completion",
            summary="Print what completes commands and options of neox in bash, zsh or fish.",
        )
    ]
