"""Each rule of the blocks: broken, and just held. Those with a number in the documents are in the core's index."""

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from neox_curriculum.rules import CURRICULUM, LTD, METRICS, SAMPLING, problems
from neox_curriculum.settings import (
    CurriculumBlock,
    DataEfficiencyBlock,
    GrowthConfig,
    Metric,
    RandomLtdBlock,
    RandomLtdSchedule,
    RoutingBlock,
    SamplingBlock,
    ScheduleConfig,
    SeqlenBlock,
)

LINEAR = ScheduleConfig(total_curriculum_step=10, difficulty_step=8)
SEQLEN = Metric(
    clustering_type="single_cluster",
    min_difficulty=8,
    max_difficulty=32,
    schedule_type="fixed_linear",
    schedule_config=LINEAR,
)
VALUE = evolve(
    SEQLEN,
    clustering_type="schedule_based",
    difficulty_type="value",
    index_to_sample_path="s",
    index_to_metric_path="m",
)
PERCENTILE = evolve(VALUE, difficulty_type="percentile", index_to_metric_path=None)
DISCRETE = ScheduleConfig(difficulty=(8, 32), max_step=(5,))
GROWTH = GrowthConfig(require_steps=10, seq_per_step=8)
SCHEDULE = RandomLtdSchedule(min_value=8, max_value=32, schedule_type="fixed_linear", schedule_config=GROWTH)
ROUTED = RandomLtdBlock(enabled=True, random_ltd_layer_id=(1,), random_ltd_schedule=SCHEDULE)
OLDER = SeqlenBlock(
    enabled=True,
    curriculum_type="seqlen",
    min_difficulty=8,
    max_difficulty=32,
    schedule_type="fixed_linear",
    schedule_config=LINEAR,
)
PLAIN = {"seq_length": 32, "num_layers": 4, "num_workers": 2, "sequence_parallel": False, "sliding_window_width": None}


def metrics(**metrics: Metric) -> DataEfficiencyBlock:
    learning = CurriculumBlock(enabled=True, curriculum_metrics=metrics)
    return DataEfficiencyBlock(enabled=True, data_sampling=SamplingBlock(enabled=True, curriculum_learning=learning))


def routed(**changed: Any) -> DataEfficiencyBlock:
    return DataEfficiencyBlock(
        enabled=True, data_routing=RoutingBlock(enabled=True, random_ltd=evolve(ROUTED, **changed))
    )


def kept(**changed: Any) -> DataEfficiencyBlock:
    return routed(random_ltd_schedule=evolve(SCHEDULE, **changed))


def said(block: DataEfficiencyBlock | SeqlenBlock, *, sparse: bool = False, **written: Any) -> list[str]:
    """What is said of a block beside keys that are written too; warnings begin with "warning"."""
    name = "data_efficiency" if isinstance(block, DataEfficiencyBlock) else "curriculum_learning"
    config: Any = SimpleNamespace(
        value={**PLAIN, **written, name: block}.__getitem__,
        is_set=lambda key: key == name or key in written,
        components=lambda kind: (object(),) if sparse else (),
    )
    return [
        ("warning " if each.severity == "warning" else "") + f"{each.key}: {each.message}" for each in problems(config)
    ]


@pytest.mark.parametrize("block", [metrics(seqlen=SEQLEN, a=VALUE, b=PERCENTILE), routed(), OLDER])
def test_whole_blocks_hold(block: Any) -> None:
    assert said(block) == []


CASES = {
    "no schedule": (metrics(seqlen=evolve(SEQLEN, schedule_type=None)), f"{METRICS}.seqlen.schedule_type: is required"),
    "a number of another schedule": (
        metrics(seqlen=evolve(SEQLEN, schedule_config=evolve(LINEAR, root_degree=2))),
        "schedule_config.root_degree: is not read by schedule_type: fixed_linear",
    ),
    "a step that tensor cores do not like": (
        evolve(OLDER, schedule_config=evolve(LINEAR, difficulty_step=6)),
        "warning curriculum_learning.schedule_config.difficulty_step: 6 is not a multiple of 8",
    ),
    "levels that fall": (
        evolve(OLDER, schedule_type="fixed_discrete", schedule_config=evolve(DISCRETE, difficulty=(32, 8))),
        "schedule_config.difficulty: must not fall",
    ),
    "ends that do not rise": (
        evolve(
            OLDER,
            schedule_type="fixed_discrete",
            schedule_config=ScheduleConfig(difficulty=(8, 16, 32), max_step=(5, 5)),
        ),
        "schedule_config.max_step: must rise",
    ),
    "a level beyond the highest": (
        evolve(OLDER, schedule_type="fixed_discrete", schedule_config=evolve(DISCRETE, difficulty=(8, 40))),
        "schedule_config.difficulty: must stay from min_difficulty 8 to max_difficulty 32",
    ),
    "lengths that choose": (
        metrics(seqlen=evolve(SEQLEN, clustering_type="schedule_based")),
        f"{METRICS}.seqlen.clustering_type: must be single_cluster",
    ),
    "lengths by percentile": (
        metrics(seqlen=evolve(SEQLEN, difficulty_type="percentile")),
        f"{METRICS}.seqlen.difficulty_type: must be value",
    ),
    "lengths with an index": (
        metrics(seqlen=evolve(SEQLEN, index_to_sample_path="s")),
        f"{METRICS}.seqlen.index_to_sample_path: is not read",
    ),
    "no token": (evolve(OLDER, min_difficulty=0), "curriculum_learning.min_difficulty: must be 1 token or more"),
    "another metric in one cluster": (
        metrics(a=evolve(VALUE, clustering_type="single_cluster")),
        f"{METRICS}.a.clustering_type: must be schedule_based",
    ),
    "no index": (metrics(a=evolve(VALUE, index_to_sample_path=None)), "a.index_to_sample_path: is required"),
    "no values": (metrics(a=evolve(VALUE, index_to_metric_path=None)), "a.index_to_metric_path: is required"),
    "values for a percentile": (
        metrics(a=evolve(PERCENTILE, index_to_metric_path="m")),
        f"warning {METRICS}.a.index_to_metric_path: is not read",
    ),
    "no difficulty type": (metrics(a=evolve(VALUE, difficulty_type=None)), "a.difficulty_type: is required"),
    "no parts": (
        metrics(a=evolve(PERCENTILE, min_difficulty=0, max_difficulty=0)),
        "a.max_difficulty: must be 1 or more",
    ),
    "no layers": (routed(random_ltd_layer_id=()), f"{LTD}.random_ltd_layer_id: is required"),
    "a layer twice": (routed(random_ltd_layer_id=(1, 1)), f"{LTD}.random_ltd_layer_id: must be different layers"),
    "an encoder": (routed(model_type="encoder"), f"{LTD}.model_type: neox trains decoders"),
    "other axes": (routed(hidden_state_order="seq_batch_dim"), f"{LTD}.hidden_state_order: changes no number"),
    "a mask": (routed(model_mask_name="mask"), f"warning {LTD}.model_mask_name: does nothing"),
    "nothing kept": (kept(min_value=7), "random_ltd_schedule.min_value: 7 is below seq_per_step 8"),
    "no growth": (kept(schedule_config=GrowthConfig(require_steps=9)), "schedule_config.seq_per_step: is required"),
    "no type of older": (evolve(OLDER, curriculum_type=None), "curriculum_learning.curriculum_type: is required"),
}


@pytest.mark.parametrize("name", CASES)
def test_broken(name: str) -> None:
    block: Any
    block, expected = CASES[name]
    lines = said(block)
    assert len(lines) == 1, lines
    assert expected in lines[0]


@pytest.mark.parametrize("block", [metrics(seqlen=SEQLEN), routed(), OLDER])
def test_parts_of_sequences_and_sparse_layouts_do_not_go_along(block: Any) -> None:
    assert "is not available with sequence-parallel" in said(block, sequence_parallel=True)[0]
    assert "is not available with sparse attention" in said(block, sparse=True)[0]


def test_an_index_is_of_one_dataset() -> None:
    assert said(metrics(seqlen=SEQLEN), train_data_paths=("a", "b")) == []
    assert "index is of one dataset" in said(metrics(a=VALUE), train_data_paths=("a", "b"))[0]


def test_readers_are_those_of_the_curriculum() -> None:
    assert said(metrics(seqlen=SEQLEN), num_workers=0) == []
    assert f"reads with {SAMPLING}.num_workers, 0" in said(metrics(seqlen=SEQLEN), num_workers=2)[0]


def test_a_switch_counts_where_those_around_it_are_on() -> None:
    whole = metrics(seqlen=SEQLEN)
    off = evolve(whole, data_sampling=evolve(whole.data_sampling, enabled=False))
    assert not off.samples
    assert said(off) == [f"warning {CURRICULUM}.enabled: does nothing while {SAMPLING}.enabled is false"]
    assert said(evolve(routed(), enabled=False))[-1] == (
        f"warning {LTD}.enabled: does nothing while data_efficiency.enabled is false"
    )
    alone = evolve(
        off,
        data_sampling=evolve(off.data_sampling, curriculum_learning=type(whole.data_sampling.curriculum_learning)()),
    )
    (warning,) = said(alone)
    assert warning.startswith("warning data_efficiency.enabled: does nothing while")


def test_windows_count_tokens_that_are_not_there() -> None:
    assert said(routed(), sliding_window_width=8) == [
        f"{LTD}.enabled: is not available with sliding windows, which count all tokens of a sample"
    ]
