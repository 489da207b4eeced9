"""What tests of rules share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neox_core.config.report import ProblemsError, render
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run


@pytest.fixture
def check(tmp_path: Path, text: str, catalog: Any) -> Callable[..., list[str]]:
    """`check(*sets, machine=..., catalog=...)`: what is said of the base config with `--set`s."""

    def check(*sets: str, machine: Machine = Machine(0, 4), catalog: Any = catalog) -> list[str]:  # noqa: B008
        (tmp_path / "c.yml").write_text(text)
        try:
            notes = prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=machine).notes
        except ProblemsError as error:
            notes = error.problems
        return [render([each]).replace(f"{tmp_path}/", "") for each in notes]

    return check
