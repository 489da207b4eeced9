"""The settings of the evaluator `samples`."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting

MOST = 16
"""Prompts: all ranks wait while one of them continues each."""


@frozen
class SamplesBlock:
    """What the model continues, and when."""

    prompts: tuple[str, ...] = setting(
        (), help="Texts that the model continues.", check=v.max_len(MOST), changes="output"
    )
    interval: int | None = setting(
        None,
        help="Write at those validations whose step is a multiple of this; null: at each.",
        unit="steps",
        check=v.optional(v.ge(1)),
        changes="output",
    )


@frozen
class SamplesSettings:
    samples: SamplesBlock = setting(SamplesBlock(), help="Block of the evaluator samples.", changes="output")
