"""A small slice, with a seed, of what tests/fuzz runs at length."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "fuzz/fuzz_config.py"


@pytest.fixture
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_config", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plan_or_a_report_and_never_a_traceback(fuzz: ModuleType, tmp_path: Path) -> None:
    ended = fuzz.run(300, 7, tmp_path)
    assert ended.total() == 300
    assert ended["plan"] > 0
    assert ended["ProblemsError"] > 0


def test_a_seed_says_the_same_again(fuzz: ModuleType) -> None:
    made = [fuzz.Mutants(*fuzz.material(), seed=3) for _ in range(2)]
    assert [made[0].next() for _ in range(50)] == [made[1].next() for _ in range(50)]
