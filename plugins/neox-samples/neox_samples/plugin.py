"""Offers the evaluator `samples`: texts that the model writes while it is trained."""

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import Component, Problem, hookimpl, setting

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


@hookimpl
def neox_evaluators() -> list[Component]:
    summary = "Texts that the model writes, for the log and the report"
    return [Component("samples", "neox_samples.evaluator:Samples", SamplesSettings, summary=summary)]


@hookimpl
def neox_check_config(config: Any) -> list[Problem]:
    if not any(each.entry.qualified == "neox-samples:samples" for each in config.components("evaluator")):
        return []
    found = []
    if not config.value("samples.prompts"):
        found.append(config.problem("is required", "samples.prompts", "name texts, such as ['Once upon a time']"))
    if config.value("tokenizer_type") is None:
        found.append(config.problem("is required", "tokenizer_type", "samples are continued in text"))
    return found
