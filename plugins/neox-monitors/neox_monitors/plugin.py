"""What neox-monitors offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_monitors():
    return [
        Component(
            "console",
            "neox_monitors.console:Console",
            summary="Progress bar or plain lines, and the loss curve at the end",
            needs=("rich",),
        ),
        Component(
            "jsonl", "neox_monitors.jsonl:JsonLines", summary="metrics.jsonl in the folder of the run (jsonlines.org)"
        ),
    ]
