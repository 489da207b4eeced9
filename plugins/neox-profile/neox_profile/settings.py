"""The settings of the profiler of steps."""

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


def _ranks(instance: Any, attribute: Any, ranks: tuple[int, ...]) -> None:
    if not ranks or min(ranks) < 0 or len(set(ranks)) < len(ranks):
        raise ValueError("must be different ranks, counted from 0")


@frozen
class ProfileBlock:
    """Which steps are profiled, on which ranks."""

    first: int | None = setting(
        None,
        help="First step that is profiled; null: none is.",
        unit="steps",
        check=v.optional(v.ge(1)),
        aliases=("from",),
        changes="output",
    )
    last: int | None = setting(
        None,
        help="Last step that is profiled. Default: the first.",
        unit="steps",
        check=v.optional(v.ge(1)),
        aliases=("to",),
        changes="output",
    )
    ranks: tuple[int, ...] = setting((0,), help="Ranks that are profiled.", check=_ranks, changes="output")
    nsys: bool = setting(
        False,
        help="On GPUs, mark the steps for NVIDIA's nsys, which is started around the run, and write no trace of torch.",
        changes="output",
    )


@frozen
class ProfileSettings:
    profile: ProfileBlock = setting(ProfileBlock(), help="Block of the profiler of steps.", changes="output")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.profile != ProfileBlock()  # one without `first` is an error, see below
