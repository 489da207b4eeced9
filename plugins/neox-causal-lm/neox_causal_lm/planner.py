"""The planner of the objective: one pass for a batch, and the datasets that it blends."""

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from neox_causal_lm.section import BlendSection
from neox_core.api import Problem
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule
from neox_core.plan.runfile import DataPlan, DataSource


@rule("data_path", "train_data_paths", "split")
def one_dataset_or_several(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Data comes from data-path and split, or from datasets for each split."""
    for split, _, _ in config.section(BlendSection).named():
        for key in ("data_path", "split"):
            if config.is_set(key):
                yield config.problem(f"contradicts {split}-data-paths", key, "keep one of the two")


@rule("valid_data_paths", "test_data_paths", "eval_iters")
def every_split_has_datasets(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Where training has its own datasets, validation has too; and no split has its own datasets without training."""
    named, train = {split for split, _, _ in config.section(BlendSection).named()}, config.section(TrainingSection)
    if named and "train" not in named:
        yield config.problem("is required", "train-data-paths", f"since there are {min(named)}-data-paths")
    elif named and "valid" not in named and train.eval_iters and train.eval_interval:
        yield config.problem("is required", "valid-data-paths", "or eval-iters: 0 for none")


@rule("train_data_weights", "valid_data_weights", "test_data_weights")
def weight_for_each_dataset(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """There are as many weights as datasets."""
    for split, paths, weights in config.section(BlendSection).named():
        if weights is not None and len(weights) != len(paths):
            yield config.problem(f"has {len(weights)} weights for {len(paths)} datasets", f"{split}-data-weights")


@rule("weight_by_num_documents", "weighted_sampler_alpha")
def weights_from_one_place(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Weights are written or derived from the documents, and alpha applies only when they are derived."""
    blend, hint = config.section(BlendSection), "keep one of the two"
    if blend.weight_by_num_documents:
        for split, _, weights in blend.named():
            if weights is not None:
                yield config.problem("contradicts weight-by-num-documents", f"{split}-data-weights", hint)
        if not blend.named():
            yield config.problem("does nothing without train-data-paths", "weight-by-num-documents")
    elif config.is_set("weighted_sampler_alpha"):
        yield config.problem("does nothing without weight-by-num-documents", "weighted-sampler-alpha", "", "note")


@rule("train_data_paths")
def pass_over_one_dataset(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The samples of a pass are counted for one dataset."""
    paths = config.section(BlendSection).train_data_paths or ()
    if config.is_set("samples_per_pass") and len(paths) > 1:
        hint = "merge them with `neox data merge`, or remove it"
        yield config.problem(f"is for one dataset, and train-data-paths has {len(paths)}", "samples-per-pass", hint)


class Planner:
    """The planner of the objective: see `contracts.Objective`."""

    rules: tuple[Rule, ...] = (
        one_dataset_or_several,
        every_split_has_datasets,
        weight_for_each_dataset,
        weights_from_one_place,
        pass_over_one_dataset,
    )

    def __call__(self, settings: object) -> int:
        """One pass over the model for a batch."""
        return 1

    def takes_cross_entropy(self, settings: Any) -> bool:
        """Whether the loss needs nothing else of the model's outputs."""
        return not settings.z_loss

    def datasets(self, config: Config) -> list[tuple[str, str]]:
        """(key, prefix) of each dataset that a split has of its own."""
        named = config.section(BlendSection).named()
        return [(f"{split}-data-paths", path) for split, paths, _ in named for path in paths]

    def data(self, config: Config, plan: DataPlan) -> DataPlan:
        """The plan with the datasets of each split and their weights."""
        blend = config.section(BlendSection)
        return evolve(
            plan,
            train=_sources(blend.train_data_paths, blend.train_data_weights),
            valid=_sources(blend.valid_data_paths, blend.valid_data_weights),
            test=_sources(blend.test_data_paths, blend.test_data_weights),
            sampler_alpha=blend.weighted_sampler_alpha if blend.weight_by_num_documents else None,
        )


def _sources(paths: tuple[str, ...] | None, weights: tuple[float, ...] | None) -> tuple[DataSource, ...]:
    return tuple(map(DataSource, paths or (), weights or (1.0,) * len(paths or ())))


PLANNER = Planner()
