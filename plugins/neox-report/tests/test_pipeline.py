"""The schedule that is drawn, beside DeepSpeed's own."""

import pytest
from neox_report.pipeline import pipeline_of, schedule

theirs = pytest.importorskip("deepspeed.runtime.pipe.schedule")


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 5), (3, 4), (4, 2), (4, 8), (5, 7), (8, 3)])
def test_it_is_the_one_that_deepspeed_runs(stages: int, micro_batches: int) -> None:
    drawn = schedule(stages, micro_batches)
    for stage in range(stages):
        made = theirs.TrainSchedule(micro_batches, stages, stage)
        row = []
        for time in range(2 * (micro_batches + stages - 1)):
            micro_batch, forward = made._step_to_micro_batch(time)
            there = 0 <= micro_batch < micro_batches
            row.append((micro_batch + 1 if forward else -micro_batch - 1) if there else 0)
        assert drawn[stage] == row
    waits = sum(row.count(0) for row in drawn) / sum(map(len, drawn))
    plan = {"cluster": {"pipeline_parallel": stages}, "batch": {"gradient_accumulation": micro_batches}}
    told = pipeline_of(plan)
    assert told is not None
    assert told["bubble"] == pytest.approx(waits)


def test_without_a_pipeline_there_is_none() -> None:
    assert pipeline_of({}) is None
    assert pipeline_of({"cluster": {"pipeline_parallel": 1}}) is None
    huge = pipeline_of({"cluster": {"pipeline_parallel": 10**9}, "batch": {"gradient_accumulation": 10**9}})
    assert huge is not None
    assert huge["rows"] == []
