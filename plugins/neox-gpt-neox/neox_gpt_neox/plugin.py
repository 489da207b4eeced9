"""What neox-gpt-neox offers."""

from neox_core.api import Component, OlderSpelling, hookimpl
from neox_gpt_neox.spellings import SPELLINGS


@hookimpl
def neox_older_spellings() -> tuple[OlderSpelling, ...]:
    return SPELLINGS


@hookimpl
def neox_commands() -> list[Component]:
    commands = "neox_gpt_neox.commands"
    return [
        Component("config.migrate", f"{commands}:migrate", summary="Rewrite GPT-NeoX's files in today's spelling."),
        Component("config.coverage", f"{commands}:coverage", summary="Count the keys of GPT-NeoX that are here."),
    ]
