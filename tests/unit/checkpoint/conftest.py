"""What tests of checkpoints share."""

import sys
from pathlib import Path

import pytest
from attrs import evolve
from neox_author.testing.plans import example_plan

from neox_core.plan.runfile import RunPlan

sys.path.insert(0, str(Path(__file__).parent))

from checkpoint_runs import ADAM, CAUSAL_LM, ENGINES, LINEAR


@pytest.fixture(params=ENGINES)
def plan(tmp_path: Path, request: pytest.FixtureRequest) -> RunPlan:
    """Of each engine, at ZeRO 0."""
    plan = example_plan(tmp_path / "run", ranks=(1,))
    return evolve(
        plan,
        objective=CAUSAL_LM,
        engine_component=evolve(plan.engine_component, name=request.param),
        optim=evolve(plan.optim, optimizer=ADAM, schedule=LINEAR, weight_decay=0.1),
        engine={"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1},
        checkpoint=evolve(plan.checkpoint, save=str(tmp_path / "save")),
        plugins={"neox-adam": "0.1.0", "neox-lr": "0.1.0"},
    )
