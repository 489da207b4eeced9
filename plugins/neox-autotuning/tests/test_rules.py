"""What the block must be; a library that is there or not is told to the rule, not installed."""

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from neox_autotuning import rules
from neox_autotuning.settings import AutotuningBlock, AutotuningSettings


def said(written: frozenset[str] = frozenset(), **block: Any) -> list[str]:
    settings = AutotuningSettings(autotuning=AutotuningBlock(**block))
    written |= {"autotuning", *(f"autotuning.{key}" for key in block)}
    config: Any = SimpleNamespace(
        section=lambda cls: settings,
        is_set=written.__contains__,
        value={"model_parallel_size": 2}.__getitem__,
    )
    found = list(rules.problems(config))
    noted = [each.message for each in found if each.severity == "note"]
    assert noted == ([] if settings.autotuning.enabled else ["is read by `neox tune` only"])
    return [f"{each.key}: {each.message}" for each in found if each.severity != "note"]


def test_defaults_hold() -> None:
    assert said() == []


@pytest.mark.parametrize(("there", "expected"), [(True, []), (False, ["autotuning.tuner_type: model_based needs"])])
def test_a_tuner_with_a_model_needs_xgboost(monkeypatch: pytest.MonkeyPatch, there: bool, expected: list[str]) -> None:
    monkeypatch.setattr(rules, "MODEL", evolve(rules.MODEL, needs=("attrs" if there else "no_such_library",)))
    assert [line[: len(expected[0])] for line in said(fast=False)] == expected
    assert said(fast=False, tuner_type="random") == []


def test_one_number_says_how_many_ranks_share_a_model() -> None:
    assert said(mp_size=1) == ["autotuning.mp_size: 1 is not model-parallel-size, 2"]
    assert said(mp_size=2) == []
