"""Offers lm-evaluation-harness: the evaluator `lm_eval` and the command `neox eval`."""

from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_evaluators() -> list[Component]:
    return [
        Component(
            "lm_eval",
            "neox_lm_eval.evaluator:LMEval",
            "neox_lm_eval.settings:LMEvalSettings",
            summary="Scores of tasks of lm-evaluation-harness",
            needs=("lm_eval",),
        )
    ]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "eval",
            "neox_lm_eval.command:evaluate",
            summary="Score the model in a checkpoint on tasks of lm-evaluation-harness.",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> list[Problem]:
    chosen = [each for each in config.components("evaluator") if each.entry.component.name == "lm_eval"]
    if not chosen:
        return []
    found = []
    if not chosen[0].settings.lm_eval.tasks:
        found.append(config.problem("is required", "lm_eval.tasks", "name tasks, such as [lambada_openai, piqa]"))
    if config.value("tokenizer_type") is None:
        found.append(config.problem("is required", "tokenizer_type", "lm_eval asks the model in text"))
    return found
