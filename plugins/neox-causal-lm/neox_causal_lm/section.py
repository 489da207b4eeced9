"""The keys of several datasets that a causal language model blends."""

from typing import Any

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import at_least, distinct, not_empty


def _distinct_paths(instance: Any, field: Any, value: tuple[str, ...] | None) -> None:
    not_empty(instance, field, value)
    distinct(instance, field, value or ())


def _positive(instance: Any, field: Any, value: tuple[float, ...] | None) -> None:
    not_empty(instance, field, value)
    for weight in value or ():
        if not weight > 0:
            raise ValueError(f"must be positive numbers, not {weight:g}; leave out a dataset without weight")


def _paths(split: str) -> Any:
    return setting(
        None,
        help=f"Datasets for {split}, by prefix; their samples are blended.",
        check=_distinct_paths,
        origin="gpt-neox",
    )


def _weights(split: str) -> Any:
    return setting(
        None,
        help=f"Weights of the datasets for {split}, relative to each other. Default: equal.",
        check=_positive,
        origin="gpt-neox",
    )


@frozen
class BlendSection:
    """Separate datasets for training, validation and test, and the proportions in which they are mixed."""

    train_data_paths: tuple[str, ...] | None = _paths("training")
    train_data_weights: tuple[float, ...] | None = _weights("training")
    valid_data_paths: tuple[str, ...] | None = _paths("validation")
    valid_data_weights: tuple[float, ...] | None = _weights("validation")
    test_data_paths: tuple[str, ...] | None = _paths("the test")
    test_data_weights: tuple[float, ...] | None = _weights("the test")
    weight_by_num_documents: bool = setting(
        False, help="Derive the weights of the datasets from their numbers of documents.", origin="gpt-neox"
    )
    weighted_sampler_alpha: float = setting(
        1.0,
        help="Power of the share of documents in weight-by-num-documents; below 1 favours small datasets.",
        check=at_least(0),
        origin="gpt-neox",
    )

    def named(self) -> list[tuple[str, tuple[str, ...], tuple[float, ...] | None]]:
        """(split, paths, weights) of each split that has datasets of its own."""
        splits = {
            "train": (self.train_data_paths, self.train_data_weights),
            "valid": (self.valid_data_paths, self.valid_data_weights),
            "test": (self.test_data_paths, self.test_data_weights),
        }
        return [(split, paths or (), weights) for split, (paths, weights) in splits.items() if paths or weights]
