"""What neox-launchers offers."""

from neox_core.api import Component, hookimpl
from neox_launchers.settings import LocalSettings


@hookimpl
def neox_launchers():
    return [
        Component(
            "local",
            "neox_launchers.local:local",
            LocalSettings,
            summary="One process a rank on this machine, watched by torch's elastic agent",
            needs=("torch",),
        )
    ]
