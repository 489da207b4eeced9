"""Offers the spike guard."""

from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "spike_guard",
            "neox_spike_guard.guard:SpikeGuard",
            "neox_spike_guard.settings:SpikeGuardSettings",
            summary="Goes back to a checkpoint at a spike of the loss, and skips its samples (arXiv:2204.02311, 5.1)",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> list[Problem]:
    chosen = [each for each in config.components("callback") if each.entry.component.name == "spike_guard"]
    if not chosen:
        return []
    found = []
    block = chosen[0].settings.spike_guard
    if config.value("save") is None:
        found.append(config.problem("is required", "save", "spike_guard goes back to the last checkpoint"))
    if config.value("no_save_optim"):
        found.append(
            config.problem("contradicts spike_guard, which goes back to checkpoints", "no_save_optim", "remove it")
        )
    if block.least > block.window:
        said = f"{block.least} losses never are in a window of {block.window}"
        found.append(config.problem(said, "spike_guard.least", "lower it, or raise window"))
    return found
