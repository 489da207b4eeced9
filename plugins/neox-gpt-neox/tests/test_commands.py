"""`neox config migrate` and `neox config coverage`, as a user calls them."""

import json
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


def test_they_are_commands_of_config(run: Run) -> None:
    assert {"migrate", "coverage"} <= {line.split()[0] for line in run("--help").stdout.splitlines() if line.strip()}
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


def test_coverage_adds_up(run: Run) -> None:
    counts = json.loads(run("coverage", "--json").stdout)
    for part in ("parameters", "names"):
        sums = counts[part].pop("total")
        for state, number in sums.items():
            assert number == sum(row[state] for row in counts[part].values())
    assert sum(sums.values()) >= 40
    assert counts["parameters"]["compression"] == {"implemented": 0, "older_spelling": 0, "known_only": 87}
    assert counts["parameters"]["retrieval"]["known_only"] == 13


def test_coverage_as_a_table(run: Run) -> None:
    counts = json.loads(run("coverage", "--json").stdout)["parameters"]["total"]
    total = next(line for line in run("coverage").stdout.splitlines() if line.startswith("total"))
    assert total.split()[1:] == [*map(str, counts.values()), str(sum(counts.values()))]
