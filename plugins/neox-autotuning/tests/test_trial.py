"""What is made of a run's metrics, by hand-written ones."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from neox_autotuning.settings import AutotuningBlock
from neox_autotuning.space import Trial
from neox_autotuning.trial import Bench, Result, measured, score

# step 1 is slow, and 5 is not measured; 4 is slow by accident
SECONDS = {1: 9.0, 2: 1.0, 3: 2.0, 4: 70.0, 5: 7.0}


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"batch": {"train_batch": 6}}))
    lines = [{"step": step, "step_s": seconds, "tflops": 12 / seconds} for step, seconds in SECONDS.items()]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"step": 1, "startup": 1.0}, *lines]))
    return path


@pytest.mark.parametrize(
    ("metric", "value"),
    [("latency", 2.0), ("throughput", 3.0), ("FLOPS", 6e12)],  # 2 s; 6 samples in them; 12e12 operations
)
def test_the_measured_steps_alone_count(metrics: Path, metric: Any, value: float) -> None:
    block = AutotuningBlock(metric=metric, start_profile_step=2, end_profile_step=4)
    assert measured(metrics, block) == pytest.approx(value)


def test_a_run_that_ended_before_has_no_metric(metrics: Path) -> None:
    assert measured(metrics, AutotuningBlock(start_profile_step=5, end_profile_step=6)) is None
    assert measured(metrics.with_name("nothing.jsonl"), AutotuningBlock()) is None


def test_low_latency_is_better() -> None:
    low, high = (score(Result("", {}, "latency", (3, 5), value)) for value in (1.0, 2.0))
    assert low is not None
    assert high is not None
    assert low > high
    assert score(Result("", {}, "throughput", (3, 5), 2.0)) == 2.0
    assert score(Result("", {}, "latency", (3, 5), None)) is None


def test_a_trial_saves_and_tells_nothing_and_ends_after_the_last_measured_step(tmp_path: Path) -> None:
    block = AutotuningBlock(end_profile_step=9)
    bench = Bench(
        [Path("a.yml")],
        ["save-interval=7", "seed=3"],
        frozenset({"save", "save_interval", "wandb"}),
        block,
        tmp_path,
        tmp_path,
    )
    command = bench.command(Trial("t", 1, 4, {"zero_optimization.stage": 1}), tmp_path)
    sets = [value for flag, value in pairwise(command) if flag == "--set"]
    assert command[command.index("neox_core") :][:3] == ["neox_core", "train", "a.yml"]
    assert set(sets) >= {
        "save=null",
        "save_interval=null",
        "wandb=null",
        "exit_interval=9",
        "zero_optimization.stage=1",
    }
    assert "seed=3" in sets
    assert "save-interval=7" not in sets
    assert command[-2:] == ["--run-dir", str(tmp_path)]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_trial_that_has_a_result_runs_again_where_it_is_to_be_overwritten(tmp_path: Path, overwrite: bool) -> None:
    block, trial = AutotuningBlock(overwrite=overwrite), Trial("t", 1, 4, {})
    kept = Result("t", {}, block.metric, (block.start_profile_step, block.end_profile_step), 2.0)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "result.json").write_text(json.dumps(asdict(kept)))
    found = Bench([tmp_path / "none.yml"], [], frozenset(), block, tmp_path, tmp_path).run(trial)
    assert (found == kept) is not overwrite
    assert (found.value is None) is overwrite  # there is no such config
