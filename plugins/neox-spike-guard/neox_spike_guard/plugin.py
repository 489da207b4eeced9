"""Offers the spike guard."""

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import Component, Problem, hookimpl, setting


@frozen
class SpikeGuardBlock:
    """When the loss of a step is a spike, and what is skipped for it."""

    enabled: bool = setting(False, help="Rewind at a spike of the loss.", changes="output")
    window: int = setting(
        100, help="Steps without a spike whose losses the bound follows from.", unit="steps", check=v.ge(2)
    )
    least: int = setting(20, help="Losses that it needs before it judges one.", unit="steps", check=v.ge(2))
    deviations: float = setting(
        6.0, help="A spike is above the mean of the window by more than so many standard deviations.", check=v.ge(0)
    )
    margin: float = setting(
        0.5, help="A spike is above the mean of the window by more than this.", unit="nats a token", check=v.ge(0)
    )
    before: int = setting(
        1,
        help="Steps before a spike whose samples are skipped too: their updates led to it.",
        unit="steps",
        check=v.ge(0),
    )
    after: int = setting(0, help="Steps after a spike whose samples are skipped too.", unit="steps", check=v.ge(0))
    most: int = setting(10, help="Rewinds of a run, after which a spike ends it with an error.", check=v.ge(1))


@frozen
class SpikeGuardSettings:
    spike_guard: SpikeGuardBlock = setting(SpikeGuardBlock(), help="Block of the spike guard.", changes="output")

    @property
    def enabled(self) -> bool:
        return self.spike_guard.enabled


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "spike_guard",
            "neox_spike_guard.guard:SpikeGuard",
            SpikeGuardSettings,
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
