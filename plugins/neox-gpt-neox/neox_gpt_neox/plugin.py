"""What neox-gpt-neox offers."""

from neox_core.api import Component, ConfigSection, hookimpl


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
def neox_commands() -> list[Component]:
    target = "neox_gpt_neox.commands:migrate"
    return [Component("config.migrate", target, summary="Rewrite GPT-NeoX's files in today's spelling.")]
