"""The warm-up of the batch size against Megatron-LM's rule, step by step, and its inverse."""

from collections.abc import Callable

import pytest

from neox_core.plan.runfile import BatchPlan


def megatron(first: int, growth: int, length: int, last: int, consumed: int) -> int:
    """`RampupBatchsizeNumMicroBatchesCalculator.update` of Megatron-LM, without its rounding of floats."""
    if consumed > length:
        return last
    increments = (last - first) // growth
    return first + growth * (consumed * increments // length)


@pytest.mark.parametrize(
    "ramp",
    [(2, 2, 40), (4, 4, 1), (16, 16, 5000), (2, 6, 7), (8, 8, 1600), (2, 2, 10**6), (6, 10, 333)],
)
def test_every_step_has_the_batch_of_megatron(ramp: tuple[int, int, int]) -> None:
    first, growth, length = ramp
    last = first + growth * 5
    plan = BatchPlan(2, last // 2, 1, last, ramp)
    consumed = 0
    for step in range(400):
        batch = megatron(*ramp, last, consumed)
        assert plan.samples_before(step) == consumed
        assert [plan.step_at(consumed), plan.step_at(consumed + batch - 1)] == [step, step]
        assert plan.samples_before(step + 1) - consumed == batch
        assert (plan.passes_before(step), plan.passes(step)) == (consumed // 2, batch // 2)
        consumed += batch
    assert consumed > length or length == 10**6


def test_without_a_ramp_all_steps_are_alike() -> None:
    plan = BatchPlan(2, 3, 4, 24)
    assert [plan.samples_before(step) for step in (0, 1, 10)] == [0, 24, 240]
    assert [plan.step_at(samples) for samples in (0, 23, 24, 240)] == [0, 0, 1, 10]
    assert (plan.passes_before(5), plan.passes(7)) == (15, 3)


def test_a_batch_does_not_grow_more_often_than_a_run_can_list(check: Callable[..., list[str]]) -> None:
    whole = ("train_micro_batch_size_per_gpu=1", "train_batch_size=100002")
    (said,) = check("rampup-batch-size=[1, 1, 64]", *whole)
    assert "rampup-batch-size: grows 100,001 times, and 100,000 are possible" in said
    assert check("rampup-batch-size=[2, 1, 64]", *whole) == []


def test_a_run_that_ends_before_its_batch_is_whole_is_noted(check: Callable[..., list[str]]) -> None:
    """4 samples for 8 steps, 8 for 4 and 12 for 3, as 32 samples are needed for each growth: 16 from step 15 on."""
    ramp = ("rampup-batch-size=[4, 4, 96]", "train_batch_size=16")
    (said,) = check(*ramp, "train-iters=15")
    assert "the run ends after 100 samples with a batch of 12, before it has grown to train_batch_size 16" in said
    assert said.startswith("--set: note: rampup-batch-size")
    assert check(*ramp, "train-iters=16") == []
