"""Samples by difficulty: which may come is what DeepSpeed's sampler would let come, and a step is found by itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import asdict
from neox_author.testing import curricula as kit
from neox_curriculum.curriculum import DataEfficiency, SequenceLength
from neox_curriculum.settings import (
    CurriculumBlock,
    DataEfficiencyBlock,
    DataEfficiencySettings,
    Metric,
    SamplingBlock,
    ScheduleConfig,
    SeqlenBlock,
    SeqlenSettings,
)

from neox_core.contracts import CurriculumShape
from neox_core.errors import DataError
from neox_core.hooks.loader import load_plugins

POOL, BATCH, STEPS = 100, 8, 40


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_index(tmp_path_factory.mktemp("index"), POOL)


def write_index(folder: Path, pool: int) -> dict[str, Any]:
    """Two metrics, "a" by value and "b" by percentile, written by DeepSpeed's own builder, as its analyzer does."""
    import torch
    from deepspeed.runtime.data_pipeline.data_sampling.utils import (
        close_mmap_dataset_builder,
        create_mmap_dataset_builder,
    )

    rng = np.random.default_rng(5)
    values = {name: rng.integers(0, 12, pool) for name in "ab"}
    for name, of_sample in values.items():
        samples = create_mmap_dataset_builder(str(folder / f"{name}_sample"), np.uint8)
        metric = create_mmap_dataset_builder(str(folder / f"{name}_metric"), np.int64)
        for value in np.unique(of_sample):
            samples.add_item(torch.tensor(np.flatnonzero(of_sample == value)))
            metric.add_item(torch.tensor([value]))
        close_mmap_dataset_builder(samples, str(folder / f"{name}_sample"))
        close_mmap_dataset_builder(metric, str(folder / f"{name}_metric"))
    return {"folder": folder, **values}


def by_value(folder: Path) -> Metric:
    return Metric(
        index_to_sample_path=str(folder / "a_sample"),
        index_to_metric_path=str(folder / "a_metric"),
        difficulty_type="value",
        clustering_type="schedule_based",
        min_difficulty=2,
        max_difficulty=11,
        schedule_type="fixed_linear",
        schedule_config=ScheduleConfig(total_curriculum_step=30, difficulty_step=1),
    )


def by_percentile(folder: Path) -> Metric:
    return Metric(
        index_to_sample_path=str(folder / "b_sample"),
        difficulty_type="percentile",
        clustering_type="schedule_based",
        min_difficulty=3,
        max_difficulty=7,
        schedule_type="fixed_discrete",
        schedule_config=ScheduleConfig(difficulty=(3, 5, 7), max_step=(10, 20)),
    )


def curriculum(metrics: dict[str, Metric], *, seed: int = 1234, num_epochs: int = 1000, **more: Any) -> DataEfficiency:
    learning = CurriculumBlock(enabled=True, curriculum_metrics=metrics, **more)
    sampling = SamplingBlock(enabled=True, num_epochs=num_epochs, num_workers=1, curriculum_learning=learning)
    block = DataEfficiencyBlock(enabled=True, seed=seed, data_sampling=sampling)
    shape = CurriculumShape(num_layers=2, seq_length=16, train_batch=BATCH, train_iters=STEPS)
    return DataEfficiency(shape, DataEfficiencySettings(data_efficiency=block))


def allowed_by_deepspeed(index: dict[str, Any], name: str, limit: int) -> set[int]:
    from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler
    from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset

    path = {kind: str(index["folder"] / f"{name}_{kind}") for kind in ("sample", "metric")}
    sampler = SimpleNamespace(
        curriculum_index_to_sample={name: MMapIndexedDataset(path["sample"], skip_warmup=True)},
        curriculum_index_to_metric={name: MMapIndexedDataset(path["metric"], skip_warmup=True)},
        data_1epoch_size=None,
        data_efficiency_config={
            "data_sampling": {"curriculum_learning": {"curriculum_metrics": {name: {"max_difficulty": 7}}}}
        },
    )
    if name == "a":
        return set(DeepSpeedDataSampler.get_sample_based_on_metric_value(sampler, name, float("-inf"), limit).tolist())
    return set(DeepSpeedDataSampler.get_sample_based_on_metric_percentile(sampler, name, 0, limit).tolist())


def test_keeps_the_contract_of_curricula(tmp_path: Path) -> None:
    write_index(tmp_path, kit.POOL)
    growing = {"schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 40, "difficulty_step": 8}}
    routing = {"min_value": 16, "max_value": 64, "schedule_type": "fixed_linear"}
    routing["schedule_config"] = {"require_steps": 30, "seq_per_step": 8}
    lengths = {"min_difficulty": 8, "max_difficulty": 64, **growing}
    metrics = {"a": asdict(by_value(tmp_path)), "b": asdict(by_percentile(tmp_path)), "seqlen": lengths}
    sampling = {"enabled": True, "curriculum_learning": {"enabled": True, "curriculum_metrics": metrics}}
    skipping = {"enabled": True, "random_ltd_layer_id": [1, 2], "random_ltd_schedule": routing}
    block = {"enabled": True, "data_sampling": sampling, "data_routing": {"enabled": True, "random_ltd": skipping}}
    catalog = load_plugins()
    kit.check_curriculum(catalog, "data_efficiency", data_efficiency=block)
    older = {"enabled": True, "curriculum_type": "seqlen", **lengths}
    kit.check_curriculum(catalog, "curriculum_learning", curriculum_learning=older)


@pytest.mark.parametrize("names", ["a", "b", "ab"])
def test_steps_read_what_is_easy_enough_and_each_pass_all_of_it(index: dict[str, Any], names: str) -> None:
    metrics = {name: {"a": by_value, "b": by_percentile}[name](index["folder"]) for name in names}
    ours = curriculum(metrics)
    assert ours.chooses
    limits = {"a": lambda k: 2 + min(9, 9 * (k + 1) // 30), "b": lambda k: 3 if k < 10 else 5 if k < 20 else 7}
    steps: dict[tuple[int, ...], list[int]] = {}
    for step in range(STEPS):
        chosen = ours.samples(step, POOL)
        assert chosen.shape == (BATCH,)
        key = tuple(limits[name](step) for name in names)
        steps.setdefault(key, []).extend(chosen.tolist())
    for key, read in steps.items():
        easy = set.intersection(*(allowed_by_deepspeed(index, *each) for each in zip(names, key, strict=True)))
        counts = np.bincount(read, minlength=POOL)
        assert set(np.flatnonzero(counts).tolist()) <= easy
        mine = counts[sorted(easy)]
        assert mine.max() - mine.min() <= 1  # passes, each of which has every sample once


def test_a_step_does_not_depend_on_what_was_asked_before(index: dict[str, Any]) -> None:
    metrics = {"a": by_value(index["folder"]), "b": by_percentile(index["folder"])}
    one = curriculum(metrics)
    forward = [one.samples(step, POOL).tolist() for step in range(STEPS)]
    backward = [curriculum(metrics).samples(step, POOL).tolist() for step in reversed(range(STEPS))]
    assert forward == backward[::-1]
    assert forward != [curriculum(metrics, seed=1).samples(step, POOL).tolist() for step in range(STEPS)]


def test_what_an_increase_lets_in_is_written(index: dict[str, Any], tmp_path: Path) -> None:
    ours = curriculum({"b": by_percentile(index["folder"])}, data_cluster_path=str(tmp_path / "clusters"))
    for step in (0, 9, 10, 25):
        ours.samples(step, POOL)
    files = sorted((tmp_path / "clusters").iterdir())
    found = {file.name.split("_")[2]: set(np.load(file).tolist()) for file in files}
    easy = {limit: allowed_by_deepspeed(index, "b", limit) for limit in (3, 5, 7)}
    assert found == {"b3": easy[3], "b5": easy[5] - easy[3], "b7": easy[7] - easy[5]}


def test_what_cannot_be_chosen_from_is_an_error(index: dict[str, Any], tmp_path: Path) -> None:
    folder = index["folder"]
    with pytest.raises(DataError, match="more than 3 passes over 100 samples"):
        curriculum({"a": by_value(folder)}, num_epochs=3).samples(0, POOL)
    assert len(curriculum({"a": by_value(folder)}, num_epochs=4).samples(0, POOL)) == BATCH
    with pytest.raises(DataError, match=r"metric a: its index has sample 9\d, and a pass over the data has 90"):
        curriculum({"a": by_value(folder)}).samples(STEPS - 1, 90)
    with pytest.raises(DataError, match="cannot read the index"):
        curriculum({"a": by_value(tmp_path)})
    (tmp_path / "a_sample.idx").write_bytes(b"something else")
    with pytest.raises(DataError, match="not an index of DeepSpeed's DataAnalyzer"):
        curriculum({"a": by_value(tmp_path)})
    (tmp_path / "a_sample.idx").write_bytes((folder / "a_sample.idx").read_bytes())
    (tmp_path / "a_sample.bin").write_bytes((folder / "a_sample.bin").read_bytes()[:-1])
    with pytest.raises(DataError, match="index and data do not fit: 100 of 99"):
        curriculum({"a": by_value(tmp_path)})


def test_lengths_grow_and_nothing_is_chosen() -> None:
    config = ScheduleConfig(total_curriculum_step=4, difficulty_step=4)
    terms: dict[str, Any] = {"min_difficulty": 4, "max_difficulty": 16, "schedule_type": "fixed_linear"}
    ours = curriculum({"seqlen": Metric(**terms, schedule_config=config)})
    shape = CurriculumShape(num_layers=2, seq_length=16, train_batch=BATCH, train_iters=STEPS)
    older = SequenceLength(
        shape, SeqlenSettings(curriculum_learning=SeqlenBlock(enabled=True, **terms, schedule_config=config))
    )
    for each in (ours, older):
        assert not each.chooses
        assert each.routed_layers == frozenset()
        assert [each.sequence_length(step) for step in range(5)] == [4, 8, 12, 16, 16]
        assert each.kept_tokens(0) == 16
    assert (ours.num_workers, older.num_workers) == (1, None)
