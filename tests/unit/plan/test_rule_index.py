"""The 74 rules between the keys of the documents, by number: what holds each of them, and where it is tested."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neox_reference.rule_index import all_rules
from rule_index import INDEX
from rule_index.said import CPU, Said

from neox_core.config.report import ProblemsError, errors, render
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run


@pytest.fixture(scope="module")
def installed() -> Any:
    return load_plugins()


@pytest.fixture
def said(tmp_path: Path, text: str, installed: Any) -> Callable[..., list[str]]:
    """All that is said of the base config with `--set`s and the installed plugins, errors only."""
    (tmp_path / "c.yml").write_text(text)

    def _said(sets: tuple[str, ...], machine: Machine = CPU) -> list[str]:
        try:
            prepare_run([tmp_path / "c.yml"], sets, catalog=installed, machine=machine)
        except ProblemsError as error:
            return [render([each]) for each in errors(error.problems)]
        return []

    return _said


def _each(kind: type) -> list[Any]:
    found = [(number, place, each) for number, items in INDEX.items() for place, each in enumerate(items)]
    return [pytest.param(each, id=f"{number}-{place}") for number, place, each in found if isinstance(each, kind)]


def test_no_rule_is_missing() -> None:
    assert list(INDEX) == list(range(1, 75))
    assert all(INDEX.values())


@pytest.mark.parametrize("name", _each(str))
def test_a_rule_that_is_named_is_there(name: str) -> None:
    assert name in {rule.__name__ for rule in all_rules(load_plugins().registry)}


@pytest.mark.parametrize("case", _each(Said))
def test_said(said: Callable[..., list[str]], case: Said) -> None:
    assert any(case.said in line for line in said(case.broken, case.machine)), said(case.broken, case.machine)
    assert said(case.held, case.machine) == []
