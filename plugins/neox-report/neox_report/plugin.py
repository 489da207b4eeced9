"""What neox-report offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component("report", "neox_report.command:report", summary="Write a page about runs: curves, start-up, config."),
        Component("runs", "neox_report.runs:runs", summary="List the runs in a folder: state, step, loss, age."),
    ]
