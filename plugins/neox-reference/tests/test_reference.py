"""What is written holds the keys of the core and of an installed plugin, also where those that use it are missing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from neox_reference.hooks import document as hooks

from neox_core.cli.main import neox


def test_the_schema_has_keys_and_what_they_choose(tmp_path: Path) -> None:
    made = tmp_path / "schema.json"
    assert CliRunner().invoke(neox, ["config", "schema", "--out", str(made)]).exit_code == 0
    schema = json.loads(made.read_text())
    assert {"train-iters", "rms-norm-epsilon", "batch-size"} <= schema["properties"].keys()


@pytest.mark.parametrize("key", ["train-iters", "rms-norm-epsilon"])
def test_the_page_has_keys(key: str) -> None:
    assert f"| `{key}` |" in CliRunner().invoke(neox, ["config", "docs"]).stdout


def test_the_hooks_are_written_with_their_contracts() -> None:
    page = hooks()
    assert "## neox_norms" in page
    assert "Contract `Norm`" in page
