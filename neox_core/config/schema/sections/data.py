"""What a run reads: a dataset, its tokenizer and its splits."""

from attrs import frozen

from neox_core.config.schema.checks import above, at_least, not_empty
from neox_core.config.schema.setting import setting


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
