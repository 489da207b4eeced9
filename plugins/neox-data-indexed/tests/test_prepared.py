import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from neox_author.testing.plans import example_plan
from neox_data_indexed.prepared import other_vocabularies

from neox_core.data.records import vocabulary_of
from neox_core.plan.runfile import ComponentRef, DataPlan, DataSource


class Config:
    """Of a config, what a rule says its problems with."""

    def problem(self, message: str, key: str, hint: str = "", severity: str = "error") -> tuple[str, str, str]:
        return message, key, severity


@pytest.fixture
def plan(tmp_path: Path) -> DataPlan:
    """One dataset; its tokenizer has one file."""
    (tmp_path / "vocab").write_text("{}")
    settings = {"vocab_file": str(tmp_path / "vocab")}
    tokenizer = ComponentRef("tokenizer", "T", "t", "0", "t:T", None, settings)
    return evolve(example_plan(tmp_path).data, prefix=str(tmp_path / "tokens"), train=(), tokenizer=tokenizer)


def told(plan: DataPlan, record: object) -> list[Any]:
    (Path(str(plan.prefix)).parent / "prepared.json").write_text(json.dumps(record))
    config: Any = Config()
    return list(other_vocabularies(config, plan))


def test_a_dataset_of_another_tokenizer_is_a_warning(plan: DataPlan, tmp_path: Path) -> None:
    assert plan.tokenizer is not None
    edges = {"tokens.idx": "", "tokens.bin": ""}
    own = vocabulary_of(plan.tokenizer)
    assert told(plan, {"vocabulary": own, "edges": edges}) == []
    said = f"{tmp_path / 'tokens'} was prepared with another tokenizer than T, or with other files of it"
    assert told(plan, {"vocabulary": "x", "edges": edges}) == [(said, "data-path", "warning")]
    (tmp_path / "vocab").write_text('{"a": 1}')
    assert told(plan, {"vocabulary": own, "edges": edges}) == [(said, "data-path", "warning")]
    blended = evolve(plan, valid=(DataSource(str(tmp_path / "tokens"), 1.0),), train=(DataSource("elsewhere", 1.0),))
    assert told(blended, {"vocabulary": own, "edges": edges}) == [(said, "valid-data-paths", "warning")]


@pytest.mark.parametrize(
    "record",
    [
        {"vocabulary": "x", "edges": {"other.idx": ""}},
        {"vocabulary": "", "edges": {"tokens.idx": ""}},
        {"edges": {"tokens.idx": ""}},
        {"vocabulary": 3, "edges": {"tokens.idx": ""}},
        [],
    ],
)
def test_what_a_manifest_does_not_tell_is_unknown(plan: DataPlan, record: object) -> None:
    assert told(plan, record) == []
    assert told(evolve(plan, tokenizer=None), {"vocabulary": "x", "edges": {"tokens.idx": ""}}) == []
