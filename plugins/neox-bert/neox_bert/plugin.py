"""Offers an encoder, its attention, and the objective that trains it."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, ConfigSection, Problem, hookimpl

_GPT = "neox_gpt.config.sections"


@hookimpl
def neox_architectures() -> list[Component]:
    return [
        Component(
            name="bert",
            target="neox_bert.architecture:BertArchitecture",
            planner="neox_bert.planner:PLANNER",
            summary="An encoder, in which a token sees those after it too (arXiv:1810.04805).",
            sections=(
                ConfigSection("encoder", "neox_bert.section:EncoderSection"),
                ConfigSection("model", f"{_GPT}.model:ModelSection"),
                ConfigSection("attention", f"{_GPT}.attention:AttentionSection"),
                ConfigSection("dropout", f"{_GPT}.model:DropoutSection"),
                ConfigSection(
                    "activation checkpointing", f"{_GPT}.activation_checkpointing:ActivationCheckpointingSection"
                ),
                ConfigSection("fusion", f"{_GPT}.fusion:FusionSection"),
            ),
        )
    ]


@hookimpl
def neox_mixers() -> list[Component]:
    return [
        Component(
            name="bidirectional",
            target="neox_bert.attention:Bidirectional",
            planner="neox_bert.planner:attention_size",
            summary="Softmax attention to all tokens of a sample, those after a token too.",
        )
    ]


@hookimpl
def neox_objectives() -> list[Component]:
    return [
        Component(
            name="masked-lm",
            target="neox_bert.objective:MaskedLM",
            settings="neox_bert.settings:MaskedLMSettings",
            summary="Predict hidden tokens, and whether two pieces of text belong together (arXiv:1810.04805).",
        )
    ]


@hookimpl
def neox_tokenizers() -> list[Component]:
    given = ("neox_bert.settings:WordPieceSettings",)
    return [
        Component(
            name,
            f"neox_bert.wordpiece:{target}",
            *given,
            summary=f"WordPiece with BERT's files, {what} (arXiv:1609.08144)",
            planner="neox_bert.vocabulary:num_ids",
        )
        for name, target, what in (
            ("BertWordPieceLowerCase", "WordPiece", "in lower case"),
            ("BertWordPieceCase", "CasedWordPiece", "as it is written"),
        )
    ]


@hookimpl(optionalhook=True)  # of neox-hf, which may not be there
def neox_model_families() -> list[Component]:
    return [Component("bert", "neox_bert.family:Bert", summary="BERT (arXiv:1810.04805)")]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    chosen = (*config.components("architecture"), *config.components("objective"))
    if {"bert", "masked-lm"} & {each.entry.component.name for each in chosen}:
        from neox_bert.checks import problems  # and the settings, which other configs do not need

        yield from problems(config)
