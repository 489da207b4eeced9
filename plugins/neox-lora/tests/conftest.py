"""Runs of a small Llama. The folder is where tests find `lora_runs`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

sys.path.insert(0, str(Path(__file__).parent))
from lora_runs import CONFIG, ON, trained


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., Any]:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        return prepare_run([tmp_path / "c.yml"], sets, catalog=load_plugins(), start=False)

    return _resolve


@pytest.fixture
def tuned(resolve: Callable[..., Any], tmp_path: Path) -> tuple[Any, Path]:
    """The plan of a run of adapters over a base, and its checkpoint."""
    trained(resolve(f"save={tmp_path}/base", "save-interval=3").plan)
    plan = resolve(*ON, f"load={tmp_path}/base", "finetune=true", f"save={tmp_path}/tuned", "save-interval=3").plan
    trained(plan)
    return plan, tmp_path / "tuned/step-00000003"
