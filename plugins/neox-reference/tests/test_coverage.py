"""`neox config coverage`, as a user calls it."""

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


def test_coverage_adds_up(run: Run) -> None:
    counts = json.loads(run("coverage", "--json").stdout)
    for part, least in (("parameters", 461), ("names", 1)):  # every key of the documents; names of what is installed
        sums = counts[part].pop("total")
        for state, number in sums.items():
            assert number == sum(row[state] for row in counts[part].values())
        assert sum(sums.values()) >= least
    assert counts["parameters"]["compression"] == {"implemented": 86, "older_spelling": 1, "known_only": 0}
    assert counts["parameters"]["retrieval"]["known_only"] == 11


def test_coverage_as_a_table(run: Run) -> None:
    counts = json.loads(run("coverage", "--json").stdout)["parameters"]["total"]
    total = next(line for line in run("coverage").stdout.splitlines() if line.startswith("total"))
    assert total.split()[1:] == [*map(str, counts.values()), str(sum(counts.values()))]
