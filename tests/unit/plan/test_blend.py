"""Several datasets in a config: what the plan makes of them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from neox_core.config.report import ProblemsError, render
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import DataPlan, DataSource


@pytest.fixture
def data(tmp_path: Path, text: str, catalog: Any, dataset: str) -> Any:
    """The data plan of a config with `lines` in the place of data-path."""
    for name in ("other", "third"):
        for suffix in (".bin", ".idx"):
            (tmp_path / f"{name}{suffix}").write_bytes(Path(f"{dataset}{suffix}").read_bytes())

    def _data(*lines: str) -> DataPlan:
        blended = "\n".join(line for line in text.splitlines() if not line.startswith("data-path"))
        folder = "\n".join(lines).replace("DIR", str(tmp_path))
        (tmp_path / "c.yml").write_text(f"{blended}\n{folder}\n")
        return prepare_run([tmp_path / "c.yml"], [], catalog=catalog, machine=Machine(0, 4)).plan.data

    return _data


PATHS = ("train-data-paths: [DIR/tokens, DIR/other]", "valid-data-paths: [DIR/third]")


def test_datasets_and_weights_reach_the_plan(data: Any, tmp_path: Path) -> None:
    plan = data(*PATHS, "train-data-weights: [3, 1.5]", "test-data-paths: [DIR/other]")
    assert plan.train == (DataSource(str(tmp_path / "tokens"), 3.0), DataSource(str(tmp_path / "other"), 1.5))
    assert plan.valid == (DataSource(str(tmp_path / "third"), 1.0),)
    assert plan.has_test
    assert plan.prefix is None
    assert plan.sampler_alpha is None
    assert plan.backend.name == "mmap", "by the first bytes of the first dataset"


def test_weights_by_documents_reach_the_plan(data: Any) -> None:
    assert data(*PATHS, "weight-by-num-documents: true").sampler_alpha == 1.0
    plan = data(*PATHS, "weight-by-num-documents: true", "weighted-sampler-alpha: 0.3")
    assert plan.sampler_alpha == 0.3
    assert not plan.has_test


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((*PATHS, "train-data-weights: [1, -1]"), "train-data-weights: must be positive numbers, not -1"),
        ((*PATHS, "train-data-weights: [0, 1]"), "must be positive numbers, not 0; leave out a dataset without weight"),
        ((*PATHS, "train-data-weights: [.nan, 1]"), "must be a finite number, not nan"),
        ((*PATHS, "train-data-weights: [.inf, 1]"), "must be a finite number, not inf"),
        ((*PATHS, "train-data-weights: [1]"), "has 1 weights for 2 datasets"),
        ((*PATHS, "test-data-weights: [1]"), "has 1 weights for 0 datasets"),
        ((*PATHS, "split: 1, 0"), "split: contradicts train-data-paths"),
        ((PATHS[0],), "valid-data-paths: is required"),
        ((PATHS[1],), "train-data-paths: is required (since there are valid-data-paths)"),
        (("train-data-paths: []", PATHS[1]), "train-data-paths: must not be empty"),
        (("train-data-paths: [a, a]", PATHS[1]), "names 'a' twice"),
        (("train-data-paths: [nowhere/x]", PATHS[1]), "train-data-paths: there is no dataset nowhere/x"),
        (
            (*PATHS, "weight-by-num-documents: true", "train-data-weights: [1, 2]"),
            "contradicts weight-by-num-documents",
        ),
        (("weight-by-num-documents: true",), "does nothing without train-data-paths"),
        ((*PATHS, "weight-by-num-documents: true", "weighted-sampler-alpha: -1"), "must be 0 or more"),
    ],
)
def test_what_contradicts_itself_is_refused(data: Any, lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(ProblemsError) as raised:
        data(*lines)
    assert says in render(raised.value.problems)
