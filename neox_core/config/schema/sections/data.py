"""What a run reads: one dataset and its splits, or several datasets for each split."""

from typing import Any

from attrs import frozen

from neox_core.config.schema.checks import above, at_least, distinct, not_empty
from neox_core.config.schema.setting import setting


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
class DataSection:
    """The dataset, its tokenizer, and the samples made of it."""

    data_path: str | None = setting(
        None, help="Prefix of the tokenised dataset, without .bin or .idx.", check=not_empty, origin="megatron"
    )
    split: str | tuple[float, ...] = setting(
        "969, 30, 1", help="Shares of the documents for training, validation and test.", origin="megatron"
    )
    data_impl: str = setting("infer", help="Format of the dataset; infer: by its first bytes.", origin="megatron")
    num_workers: int = setting(
        2,
        help="Processes of each rank that load data; 0: the rank itself.",
        check=at_least(0),
        changes="speed",
        origin="megatron",
    )
    seq_length: int = setting(help="Tokens of a sample.", unit="tokens", check=above(0), origin="megatron")
    tokenizer_type: str | None = setting(
        None, help="Tokenizer of the dataset. Default: none; then padded-vocab-size is needed.", origin="megatron"
    )
    make_vocab_size_divisible_by: int = setting(
        128, help="The vocabulary is rounded up to a multiple of this.", check=above(0), origin="megatron"
    )
    padded_vocab_size: int | None = setting(
        None,
        help="Rows of the embedding. Default: the tokenizer's vocabulary, rounded up.",
        check=above(0),
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
