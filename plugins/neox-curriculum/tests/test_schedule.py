"""Difficulties and lengths by step are those of DeepSpeed's own schedulers."""

from typing import Any

import pytest
from attrs import asdict
from neox_curriculum.schedule import difficulty, kept
from neox_curriculum.settings import GrowthConfig, Metric, RandomLtdSchedule, ScheduleConfig

STEPS = 60


def metric(kind: str, low: int, high: int, **config: Any) -> Metric:
    return Metric(schedule_type=kind, min_difficulty=low, max_difficulty=high, schedule_config=ScheduleConfig(**config))


@pytest.mark.parametrize(
    "terms",
    [
        metric("fixed_linear", 8, 64, total_curriculum_step=40, difficulty_step=8),
        metric("fixed_linear", 5, 63, total_curriculum_step=17, difficulty_step=16),
        metric("fixed_linear", 3, 3, total_curriculum_step=4, difficulty_step=1),
        metric("fixed_root", 8, 64, total_curriculum_step=40, difficulty_step=8, root_degree=2),
        metric("fixed_root", 1, 1000, total_curriculum_step=50, difficulty_step=1, root_degree=3),
        metric("fixed_discrete", 1, 3, difficulty=(1, 2, 3), max_step=(5, 10)),
        metric("fixed_discrete", 4, 9, difficulty=(4, 9), max_step=(1,)),
    ],
    ids=lambda terms: f"{terms.schedule_type}-{terms.min_difficulty}-{terms.max_difficulty}",
)
def test_difficulty_is_that_of_deepspeeds_scheduler(terms: Metric) -> None:
    from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler

    theirs = CurriculumScheduler(asdict(terms))
    ours = difficulty(terms)
    # DeepSpeed's sampler and engine count the first step as 1.
    assert [ours(step) for step in range(STEPS)] == [theirs.update_difficulty(step + 1) for step in range(STEPS)]


@pytest.mark.parametrize(("low", "high", "steps", "grain"), [(16, 64, 40, 8), (17, 63, 11, 16), (1, 30, 60, 1)])
def test_kept_tokens_are_those_of_deepspeeds_scheduler(low: int, high: int, steps: int, grain: int) -> None:
    from deepspeed.runtime.data_pipeline.data_routing.scheduler import RandomLTDScheduler

    growth = {"require_steps": steps, "seq_per_step": grain}
    terms = {"min_value": low, "max_value": high, "schedule_type": "fixed_linear", "schedule_config": growth}
    theirs = RandomLTDScheduler(
        {
            "total_layer_num": 4,
            "random_ltd_layer_num": 2,
            "random_ltd_schedule": terms,
            "global_batch_size": 1,
            "layer_token_lr_schedule": {"enabled": False},
        }
    )
    expected = []
    for step in range(STEPS):
        theirs.update_seq(step)
        expected.append(theirs.get_current_seq())
    ours = kept(RandomLtdSchedule(**{**terms, "schedule_config": GrowthConfig(**growth)}))
    assert [ours(step) for step in range(STEPS)] == expected
