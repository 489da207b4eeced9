"""Rules of datasets and tokenizers."""

from collections.abc import Iterator
from pathlib import Path

from neox_core.config.problem import Problem
from neox_core.config.sections.host import DataSection
from neox_core.config.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule
from neox_core.plan.split import SplitError, shares


@rule("tokenizer_type", "padded_vocab_size")
def vocabulary_known(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The size of the vocabulary comes from a tokenizer or is given."""
    data = config.section(DataSection)
    if data.tokenizer_type is None and data.padded_vocab_size is None:
        yield config.problem("is required", "tokenizer-type", "or padded-vocab-size, for a dataset without tokenizer")


@rule("split")
def split_is_shares(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The split is one to three shares that are not negative and not all 0."""
    try:
        shares(config.section(DataSection).split)
    except SplitError as error:
        yield config.problem(str(error), "split", "such as 969, 30, 1")


@rule("data_path")
def data_is_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """There is a dataset."""
    prefix = config.section(DataSection).data_path
    if prefix is None:
        yield config.problem("is required", "data-path", "`neox data prepare` makes a dataset")
    elif not _any_file(Path(prefix)):
        yield config.problem(f"there is no dataset {prefix}", "data-path", "`neox data prepare` makes one")


def _any_file(prefix: Path) -> bool:
    try:
        return any(
            path.name == prefix.name or path.name.startswith(f"{prefix.name}.") for path in prefix.parent.iterdir()
        )
    except OSError:
        return False


RULES: tuple[Rule, ...] = (
    vocabulary_known,
    split_is_shares,
    data_is_there,
)
