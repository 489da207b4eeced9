"""What neox-gpt-neox offers."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, ConfigSection, Problem, hookimpl


@hookimpl
def neox_dialects() -> list[Component]:
    return [Component("gpt-neox", "neox_gpt_neox.dialect:DIALECT", summary="Keys of GPT-NeoX and DeepSpeed.")]


@hookimpl
def neox_config_sections() -> list[ConfigSection]:
    return [
        ConfigSection(
            "resting", "neox_gpt_neox.config.sections.resting:RestingSection", "Keys accepted only at their default."
        )
    ]


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "autoresume",
            "neox_gpt_neox.autoresume:Autoresume",
            "neox_gpt_neox.config.sections.autoresume:AutoresumeSettings",
            summary="Asks a command of the user's whether to save and end the run",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    from neox_gpt_neox.config.sections.autoresume import autoresume_problems

    chosen = [each for each in config.components("callback") if each.entry.qualified == "neox-gpt-neox:autoresume"]
    yield from autoresume_problems(config, chosen[0].settings if chosen else None)


@hookimpl
def neox_commands() -> list[Component]:
    target = "neox_gpt_neox.commands:migrate"
    return [Component("config.migrate", target, summary="Rewrite GPT-NeoX's files in today's spelling.")]
