"""What a shell is told of arguments that name a file, in the commands of all plugins."""

import pytest
from click.shell_completion import ShellComplete

from neox_core.cli.main import neox


@pytest.mark.parametrize(
    "line",
    [
        "train",
        "data prepare",
        "data merge",
        "data inspect",
        "data verify",
        "data train-tokenizer",
        "checkpoint export-hf",
        "checkpoint export-peft",
        "config diff",
        "generate --load",
        "generate --prompts",
        "eval --load",
        "retrieval search text --load",
    ],
)
def test_what_names_a_file_is_completed_as_one(line: str) -> None:
    found = ShellComplete(neox, {}, "neox", "_NEOX_COMPLETE").get_completions(line.split(), "te")
    assert [(each.type, each.value) for each in found] == [("file", "te")]
