"""What neox-doctor offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "doctor", "neox_doctor.command:doctor", summary="Say what this machine, or a cluster, lacks for a run."
        )
    ]
