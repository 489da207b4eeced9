"""Every command prints one JSON value where it is asked to."""

from collections.abc import Iterator

import click

from neox_core.cli.main import neox

OF_THEIR_OWN = {"completion", "config docs", "config migrate", "config schema"}
"""A script, or a file of a format that has a name."""
RUNS = {"elastic", "retrieval index", "train"}
"""They write as they go: metrics.jsonl, and the folder of an index."""


def commands(group: click.Group, context: click.Context, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, click.Context(found, context, name), f"{above}{name} ")
        else:
            yield above + name, found


def test_every_command_has_json() -> None:
    context = click.Context(neox, info_name="neox")
    with context:
        told = {
            name: {each for option in command.params for each in option.opts}
            for name, command in commands(neox, context)
        }
    assert {name for name, options in told.items() if "--json" not in options} == OF_THEIR_OWN | RUNS
