"""What neox-plan offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "plan", "neox_plan.command:plan", summary="Say what a run needs before it starts, and which layouts fit."
        )
    ]
