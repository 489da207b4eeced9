"""What neox-reference offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_commands() -> list[Component]:
    commands = "neox_reference.commands"
    return [
        Component("config.show", "neox_reference.show:show", summary="Show the plan of a run, with origins."),
        Component("config.diff", "neox_reference.diff:diff", summary="Show what differs between two configs or runs."),
        Component("config.explain", "neox_reference.explain_command:explain", summary="Print what a key means."),
        Component("config.schema", f"{commands}:schema", summary="Write a JSON Schema of the keys, for editors."),
        Component(
            "config.coverage",
            "neox_reference.coverage_command:coverage",
            summary="Count the keys of GPT-NeoX that are here.",
        ),
        Component("config.docs", f"{commands}:docs", summary="Write the reference of all keys, as Markdown."),
    ]
