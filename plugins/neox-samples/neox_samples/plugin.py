"""Offers the evaluator `samples`: texts that the model writes while it is trained."""

from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_evaluators() -> list[Component]:
    summary = "Texts that the model writes, for the log and the report"
    settings = "neox_samples.settings:SamplesSettings"
    return [Component("samples", "neox_samples.evaluator:Samples", settings, summary=summary)]


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
