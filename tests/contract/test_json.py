"""Every command prints JSON with `--json`, but those of this list, each with the reason."""

from collections.abc import Iterator

import click
import pytest

from neox_core.cli.main import neox

RUN = "trains: metrics.jsonl, failure.json and `neox runs --json` tell programs of it"
TEXT = "what it prints is a file for another program"
WITHOUT = {
    "train": RUN,
    "elastic": RUN,
    "retrieval index": RUN,
    "config docs": TEXT,
    "config migrate": TEXT,
    "config schema": TEXT,
    "completion": TEXT,
}


def commands(group: click.Group, context: click.Context, path: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """(words, whether it takes --json) of every command of the installed plugins."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            yield from commands(command, inner, (*path, name))
        else:
            yield " ".join((*path, name)), any("--json" in each.opts for each in command.params)


@pytest.fixture(scope="module")
def found() -> dict[str, bool]:
    return dict(commands(neox, click.Context(neox, info_name="neox")))


def test_every_command_has_json_or_a_reason(found: dict[str, bool]) -> None:
    assert {name for name, takes in found.items() if not takes} == set(WITHOUT)


def test_all_commands_are_looked_at(found: dict[str, bool]) -> None:
    assert {"train", "config check", "plugins list", "data prepare", "plan", "generate"} <= set(found)
