"""The arithmetic of a batch: any one or two of the three numbers, and what does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neox_core.plan.batch import BatchError, solve_batch

small = st.integers(1, 64)


@given(small, small, small)
def test_any_sufficient_subset_gives_the_same_batch(micro: int, accumulation: int, ranks: int) -> None:
    train = micro * accumulation * ranks
    expected = (micro, accumulation, ranks, train)
    for given_train, given_micro, given_steps in (
        (train, micro, accumulation),
        (train, micro, None),
        (train, None, accumulation),
        (None, micro, accumulation),
    ):
        plan = solve_batch(given_train, given_micro, given_steps, ranks)
        assert (plan.micro_batch, plan.gradient_accumulation, plan.data_parallel, plan.train_batch) == expected


def test_accumulation_is_one_when_nothing_else_follows() -> None:
    assert solve_batch(None, 4, None, 2).train_batch == 8
    only_train = solve_batch(8, None, None, 2)
    assert (only_train.micro_batch, only_train.gradient_accumulation) == (4, 1)


@pytest.mark.parametrize(
    ("train", "micro", "steps", "ranks", "key", "said"),
    [
        (None, None, None, 1, "train_micro_batch_size_per_gpu", "is required"),
        (None, None, 4, 1, "train_micro_batch_size_per_gpu", "is required"),
        (10, 4, None, 1, "train_batch_size", "10 cannot be divided by 4 samples x 1 ranks = 4"),
        (7, None, None, 2, "train_batch_size", "7 cannot be divided by 2 ranks = 2"),
        (10, None, 3, 2, "train_batch_size", "10 cannot be divided by 3 accumulation steps x 2 ranks = 6"),
        (16, 4, 2, 1, "train_batch_size", "is 16, but 4 samples x 2 accumulation steps x 1 ranks = 8"),
    ],
)
def test_what_does_not_fit(
    train: int | None, micro: int | None, steps: int | None, ranks: int, key: str, said: str
) -> None:
    with pytest.raises(BatchError) as caught:
        solve_batch(train, micro, steps, ranks)
    assert caught.value.message == said
    assert caught.value.key == key


@given(st.integers(1, 5000), small, small)
def test_the_hint_names_a_batch_that_fits(train: int, micro: int, ranks: int) -> None:
    try:
        solve_batch(train, micro, None, ranks)
    except BatchError as error:
        better = int(error.hint.split()[0])
        assert better > 0
        assert solve_batch(better, micro, None, ranks).train_batch == better
    else:
        assert train % (micro * ranks) == 0
