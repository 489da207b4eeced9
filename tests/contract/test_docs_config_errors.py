"""The examples of errors in docs/configuration.md say what the commands say. `python THIS_FILE` writes them anew."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen
from click.testing import CliRunner

from neox_core.cli.main import neox

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "plugins/neox-reference/neox_reference/errors.md"
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


def outputs(example: Example, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command of an example with what it prints, run in a folder that has the dataset and the files."""
    os.chdir(folder)
    Path("data").mkdir()
    Path("data/tokens.bin").touch()
    Path("data/tokens.idx").write_bytes(b"MMIDIDX\0\0")
    for name, text in {**EXAMPLES[0].files, **example.files}.items():
        Path(name).write_text(text)
    for command in example.commands:
        yield command, CliRunner().invoke(neox, command.split()).output.splitlines()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_an_example_is_what_the_command_says(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert example.commands
    assert dict(outputs(example, tmp_path)) == example.commands, f"run `python {Path(__file__).relative_to(ROOT)}`"


def test_every_class_of_problem_has_an_example() -> None:
    assert len(EXAMPLES) > 12


def rewrite() -> None:
    """Put what the commands print today in place of what the page has; read it before you commit it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    page = PAGE.read_text(encoding="utf-8")
    for example in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            for command, said in outputs(example, Path(folder)):
                old = "\n".join([f"$ neox {command}", *example.commands[command]])
                section = page.index(f"{example.title}\n")
                at = page.index(old, section)
                page = page[:at] + "\n".join([f"$ neox {command}", *said]) + page[at + len(old) :]
            os.chdir(ROOT)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
