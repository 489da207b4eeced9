"""What neox-kernels offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    summary = "Show, check and measure what computes a model's ops here."
    return [Component("kernels", "neox_kernels.commands:kernels", summary=summary)]
