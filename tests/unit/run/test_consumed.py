"""What a plan names and nobody builds stops the run."""

from pathlib import Path
from typing import Any

import pytest
from neox_author.testing.plans import example_plan

from neox_core.errors import ConfigError
from neox_core.plan.runfile import ComponentRef, noting, to_json
from neox_core.run.consumed import require_consumed


def part(kind: str, name: str, **settings: object) -> ComponentRef:
    return ComponentRef(kind, name, "neox-test", "1", "math:floor", None, dict(settings))


def test_a_component_that_nobody_asked_for_is_named_with_its_keys() -> None:
    ledger: set[str] = set()
    parts: Any = part("norm", "flat"), part("position", "round", turns=2), part("launcher", "local")
    read, unread, launcher = noting(parts, ledger)
    read.load()
    with pytest.raises(ConfigError, match=r"position round \(turns\)") as caught:
        require_consumed((read, unread, launcher), ledger)
    assert "norm" not in caught.value.message
    require_consumed((read, launcher), ledger)


def test_a_component_does_not_change_when_it_is_loaded() -> None:
    ledger: set[str] = set()
    plain = part("norm", "flat")
    seen = noting(plain, ledger)
    before = seen.plain()
    seen.load()
    plain.load()
    assert seen.plain() == plain.plain() == before
    assert "norm neox-test:flat" in ledger


def test_a_plan_that_notes_is_the_same_run_json(tmp_path: Path) -> None:
    plan = example_plan(tmp_path)
    assert to_json(noting(plan, set())) == to_json(plan)
