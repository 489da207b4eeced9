"""Offers a retriever of two encoders, the objective that trains it, and the commands of its index."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, ConfigSection, Problem, hookimpl

_GPT = "neox_gpt.config.sections"


@hookimpl
def neox_architectures() -> list[Component]:
    return [
        Component(
            name="retriever",
            target="neox_retrieval.architecture:RetrieverArchitecture",
            planner="neox_retrieval.planner:PLANNER",
            summary="Two encoders, of queries and of blocks of text, whose vectors are near where they belong together "
            "(arXiv:1906.00300).",
            sections=(
                ConfigSection("retriever", "neox_retrieval.section:RetrieverSection"),
                ConfigSection("index of blocks", "neox_retrieval.section:IndexSection"),
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
def neox_objectives() -> list[Component]:
    return [
        Component(
            name="inverse-cloze",
            target="neox_retrieval.objective:InverseCloze",
            settings="neox_retrieval.objective_section:InverseClozeSettings",
            summary="Find the block of text that a sentence was taken from, among all blocks of a batch "
            "(arXiv:1906.00300).",
        )
    ]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(f"retrieval.{name}", f"neox_retrieval.commands:{name}", summary=summary)
        for name, summary in (
            ("index", "Embed all blocks of the documents with a trained retriever."),
            ("search", "Find the blocks that belong to a text."),
            ("evaluate", "Measure how often the right block is among the first."),
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    chosen = (*config.components("architecture"), *config.components("objective"))
    if {"retriever", "inverse-cloze"} & {each.entry.component.name for each in chosen}:
        from neox_retrieval.checks import problems  # and the settings, which other configs do not need

        yield from problems(config)
