"""docs/config-errors.md: each example says what the command says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen
from click.testing import CliRunner

from neox_core.cli.main import neox

PAGE = Path(__file__).resolve().parents[2] / "docs/config-errors.md"
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@frozen
class Example:
    """A section of the page: its files, and its commands with what they print."""

    title: str
    files: dict[str, str]
    commands: dict[str, list[str]]


def examples() -> Iterator[Example]:
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        fences = FENCE.findall(section)
        files = {name: text for kind, name, text in fences if kind == "yaml"}
        commands = {}
        for command, *said in (text.splitlines() for kind, _, text in fences if kind == "console"):
            commands[command.removeprefix("$ neox ")] = said
        yield Example(section.partition("\n")[0], files, commands)


EXAMPLES = list(examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_an_example_is_what_the_command_says(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("data").mkdir()
    Path("data/tokens.bin").touch()
    Path("data/tokens.idx").write_bytes(b"MMIDIDX\0\0")
    for name, text in {**EXAMPLES[0].files, **example.files}.items():
        Path(name).write_text(text)
    assert example.commands
    for command, said in example.commands.items():
        assert CliRunner().invoke(neox, command.split()).output.splitlines() == said, command


def test_every_class_of_problem_has_an_example() -> None:
    assert len(EXAMPLES) > 12
