"""What is tried, with runs that are told beforehand how fast they are."""

from collections.abc import Callable
from typing import Any

import pytest
from neox_autotuning.model import predict
from neox_autotuning.settings import AutotuningBlock
from neox_autotuning.space import KNOBS, MICRO, Expect, Space, Trial, no_idea, search
from neox_autotuning.tune import compare

Speed = Callable[[Trial], float | None]


def tried(space: Space, speed: Speed, expect: Expect = no_idea, **block: Any) -> tuple[list[str], str | None]:
    """The names of all trials in order, and that of the best."""
    names: list[str] = []

    def measure(trial: Trial) -> float | None:
        names.append(trial.name)
        return speed(trial)

    best = search(space, AutotuningBlock(**block), measure, expect)
    return names, None if best is None else best[1].name


def space(stages: tuple[int, ...] = (0,), micro_batch: int = 1, per_rank: int | None = None, **more: Any) -> Space:
    return Space(
        (stages[0], micro_batch), stages, micro_batch, data_parallel=2, accumulation=1, per_rank=per_rank, **more
    )


@pytest.mark.parametrize(
    ("own", "again", "other", "best"),
    [
        (1.0, 1.1, 1.21, "z0_mbs2"),
        (1.0, 1.1, 1.19, "baseline"),  # faster by less than a run varies
        (1.0, 1.1, 1.05, "baseline"),  # between two runs of one setting: noise
        (1.1, 1.0, 1.05, "baseline"),
        (1.2, 1.2, 1.1, "baseline"),
        (None, None, 1.1, "z0_mbs1"),  # it does not fit
        (1.0, None, 1.1, "z0_mbs2"),
        (None, None, None, None),
    ],
)
def test_a_setting_is_best_when_it_is_faster_by_more_than_a_run_varies(
    own: float | None, again: float | None, other: float | None, best: str | None
) -> None:
    names: list[str] = []

    def measure(trial: Trial) -> float | None:
        names.append(trial.name)
        return {"baseline": own, "baseline_again": again}.get(trial.name, other)

    size = 2 if best == "z0_mbs1" else 1
    found = compare(space(micro_batch=size), AutotuningBlock(num_tuning_micro_batch_sizes=2), measure)
    assert (None if found is None else found.name) == best
    assert names[0] == "baseline"
    assert f"z0_mbs{size}" not in names  # it is the config as it is
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("gain", "best"), [(1, "z1_mbs4_compile"), (0, "z1_mbs4"), (-1, "z1_mbs4"), (None, "z1_mbs4")])
def test_the_best_is_tried_compiled_where_that_is_left_open(gain: int | None, best: str) -> None:
    sets: list[Any] = []

    def speed(trial: Trial) -> float | None:
        sets.append(trial.sets)
        faster = gain if "compile" in trial.sets else 0
        return None if faster is None else float(trial.micro_batch + 10 * trial.stage + faster)

    names, found = tried(space((0, 1), may_compile=True), speed)
    assert (names[-1], found) == ("z1_mbs4_compile", best)
    assert sets[-1] == {**sets[-2], "compile": True}
    assert sum("compile" in each for each in sets) == 1
    assert not any("compile" in each for each in tried(space((0, 1)), speed)[0])


def test_where_nothing_runs_nothing_is_compiled() -> None:
    assert tried(space(may_compile=True), lambda trial: None) == (["z0_mbs1"], None)


def larger_is_faster(trial: Trial) -> float:
    return float(trial.micro_batch)


def test_sizes_double_from_the_runs_own_as_often_as_asked() -> None:
    assert tried(space(micro_batch=3), larger_is_faster) == (["z0_mbs3", "z0_mbs6", "z0_mbs12"], "z0_mbs12")
    assert tried(space(), larger_is_faster, num_tuning_micro_batch_sizes=2)[0] == ["z0_mbs1", "z0_mbs2"]


def test_every_stage_is_tried_and_the_best_of_all_is_found() -> None:
    names, best = tried(space((0, 1, 3)), lambda trial: 10.0 * (trial.stage == 1) - trial.micro_batch)
    assert names == [f"z{stage}_mbs{size}" for stage in (0, 1, 3) for size in (1, 2, 4)]
    assert best == "z1_mbs1"


def test_a_trial_that_fails_ends_what_is_larger_and_nothing_else() -> None:
    names, best = tried(space((0, 1)), lambda trial: None if trial.micro_batch > 1 + trial.stage else 1.0)
    assert names == ["z0_mbs1", "z0_mbs2", "z1_mbs1", "z1_mbs2", "z1_mbs4"]
    assert best == "z0_mbs1"


def test_where_the_runs_own_size_fails_smaller_ones_are_tried() -> None:
    names, best = tried(space(micro_batch=8), lambda trial: 1.0 if trial.micro_batch <= 2 else None)
    assert (names, best) == (["z0_mbs8", "z0_mbs4", "z0_mbs2"], "z0_mbs2")
    assert tried(space(), lambda trial: None) == (["z0_mbs1"], None)


def test_no_batch_is_above_the_largest() -> None:
    assert tried(space(), larger_is_faster, max_train_batch_size=4)[0] == ["z0_mbs1", "z0_mbs2"]  # times 2 ranks


def test_a_batch_that_is_given_stays_what_it_is() -> None:
    sets: list[Any] = []

    def measure(trial: Trial) -> float:
        sets.append(dict(trial.sets))
        return 1.0

    search(space(micro_batch=3, per_rank=12), AutotuningBlock(num_tuning_micro_batch_sizes=9), measure)
    assert [(each[MICRO], each["gradient_accumulation_steps"]) for each in sets] == [(3, 4), (6, 2), (12, 1)]


def test_a_stage_is_left_after_so_many_trials_or_so_many_without_progress() -> None:
    many: dict[str, Any] = {"num_tuning_micro_batch_sizes": 9}
    assert len(tried(space(), larger_is_faster, tuner_num_trials=4, **many)[0]) == 4
    names, best = tried(space((0, 1)), lambda trial: -float(trial.micro_batch), tuner_early_stopping=2, **many)
    assert names == [f"z{stage}_mbs{size}" for stage in (0, 1) for size in (1, 2, 4)]
    assert best == "z0_mbs1"


@pytest.mark.parametrize("tuner", ["gridsearch", "random"])
def test_other_keys_are_tried_at_the_best_size_of_a_stage(tuner: str) -> None:
    names, best = tried(
        space((2,)),
        lambda trial: trial.micro_batch + 5.0 * (trial.sets.get("zero_optimization.overlap_comm") is False),
        fast=False,
        tuner_type=tuner,
        num_tuning_micro_batch_sizes=2,
        tuner_early_stopping=50,
    )
    assert names[:2] == ["z2_mbs1", "z2_mbs2"]
    combinations = 1
    for values in KNOBS[2].values():
        combinations *= len(values)
    assert len(names) == len(set(names)) == 2 + combinations
    assert best is not None
    assert best.startswith("z2_mbs2_overlap_commFalse")
    in_order = "overlap_commTrue" in names[2]
    assert in_order or tuner == "random"


def test_the_random_order_is_another_one() -> None:
    orders = [
        tried(space((3,)), larger_is_faster, fast=False, tuner_type=tuner, tuner_early_stopping=50)[0]
        for tuner in ("gridsearch", "random")
    ]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_mapped_keys_and_other_spellings_get_the_value_too() -> None:
    sets: list[Any] = []
    block = AutotuningBlock(
        num_tuning_micro_batch_sizes=1, arg_mappings={"train-micro-batch-size-per-gpu ": "--my-key"}
    )

    def measure(trial: Trial) -> float:
        sets.append(dict(trial.sets))
        return 1.0

    search(space((0, 1), micro_batch=5, spellings=("batch_size",)), block, measure)
    assert sets == [{MICRO: 5, "batch_size": 5, "my_key": 5, "zero_optimization.stage": stage} for stage in (0, 1)]


def test_a_model_takes_first_what_it_expects_most_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[tuple[Any, float]]] = []

    def predict(known: list[tuple[Any, float]], asked: list[list[float]]) -> list[float]:
        told.append(list(known))
        return [sum(each) for each in asked]  # the more, the better: large buckets, overlap

    monkeypatch.setattr("neox_autotuning.model.predict", predict)
    names, _ = tried(space((1,)), larger_is_faster, fast=False, num_tuning_micro_batch_sizes=2, tuner_early_stopping=50)
    assert [name.count("500000000") for name in names[2:]] == [2, 1, 1, 0]
    assert told[0] == [([1.0, -1.0, -1.0], 1.0), ([2.0, -1.0, -1.0], 2.0)]
    assert told[1][2] == ([2.0, 5e8, 5e8], 2.0)


def test_a_real_model_learns_which_knob_matters() -> None:
    """The trials say that overlap doubles the speed and that buckets do nothing; the prediction says so of new ones."""
    pytest.importorskip("xgboost")
    known = [([1.0, bucket, overlap], 100.0 + 100.0 * overlap) for bucket in (1e8, 5e8) for overlap in (0.0, 1.0)]
    slow, fast = predict(known, [[1.0, 2e8, 0.0], [1.0, 2e8, 1.0]])
    assert fast > 1.5 * slow
    assert [slow, fast] == pytest.approx([100.0, 200.0], rel=0.05)


def test_what_is_expected_to_be_best_is_tried_first() -> None:
    """Stages by the best of their sizes, then the sizes; what failed ends only the larger ones."""
    expected = {(0, 1): 1.0, (0, 2): 4.0, (0, 4): 3.0, (1, 1): 2.0, (1, 2): 1.0, (1, 4): 9.0}
    names, best = tried(
        space((0, 1)),
        lambda trial: None if trial.stage == 0 and trial.micro_batch == 2 else 1.0,
        lambda trial: expected[trial.stage, trial.micro_batch],
    )
    assert names == ["z1_mbs4", "z1_mbs1", "z1_mbs2", "z0_mbs2", "z0_mbs1"]
    assert best == "z1_mbs4"
