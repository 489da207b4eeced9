"""The settings of the spike guard."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


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
        """Whether the config asks for it."""
        return self.spike_guard.enabled
