"""`neox config migrate`, as a user calls it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neox_core.cli.main import neox

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Any) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(neox, ["config", *arguments])


def test_it_is_a_command_of_config(run: Run) -> None:
    assert "migrate" in {line.split()[0] for line in run("--help").stdout.splitlines() if line.strip()}
    assert run("migrat").exit_code == 2


def test_migrate_writes_and_checks(run: Run) -> None:
    Path("old.yml").write_text('{"num_layers": 2, # two\n "lr": 0.1}\n')
    shown = run("migrate", "old.yml")
    assert shown.exit_code == 0
    assert shown.stdout == 'num-layers: 2  # two\noptimizer:\n  params:\n    lr: 0.1\n  type: "Adam"\n'
    assert "lr: is the old spelling of optimizer.params.lr" in shown.stderr
    assert run("migrate", "old.yml", "--check").exit_code == 1
    assert run("migrate", "old.yml", "--out", "new.yml").exit_code == 0
    assert Path("new.yml").read_text() == shown.stdout
    assert run("migrate", "new.yml", "--check").exit_code == 0
