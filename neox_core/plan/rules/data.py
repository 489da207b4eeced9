"""Rules of datasets and tokenizers."""

import glob
from collections.abc import Iterator
from pathlib import Path

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.convert import fields_of, join
from neox_core.config.schema.sections.data import BlendSection, DataSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_core.plan.split import shares


@rule("tokenizer_type", "padded_vocab_size")
def vocabulary_known(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A tokenizer or padded-vocab-size gives the size of the vocabulary."""
    data = config.section(DataSection)
    if data.tokenizer_type is None and data.padded_vocab_size is None:
        yield config.problem("is required", "tokenizer-type", "or padded-vocab-size, for a dataset without tokenizer")


@rule("split")
def split_is_shares(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The split is one to three shares that are not negative and not all 0."""
    try:
        shares(config.section(DataSection).split)
    except MisfitError as error:
        yield config.problem(error.message, error.key, error.hint)


def _named(config: Config) -> list[tuple[str, tuple[str, ...], tuple[float, ...] | None]]:
    """(split, paths, weights) of each split that has datasets of its own."""
    blend = config.section(BlendSection)
    splits = {
        "train": (blend.train_data_paths, blend.train_data_weights),
        "valid": (blend.valid_data_paths, blend.valid_data_weights),
        "test": (blend.test_data_paths, blend.test_data_weights),
    }
    return [(split, paths or (), weights) for split, (paths, weights) in splits.items() if paths or weights]


@rule("data_path", "train_data_paths", "split")
def one_dataset_or_several(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Data comes from data-path and split, or from datasets for each split."""
    for split, _, _ in _named(config):
        for key in ("data_path", "split"):
            if config.is_set(key):
                yield config.problem(f"contradicts {split}-data-paths", key, "keep one of the two")


@rule("valid_data_paths", "test_data_paths", "eval_iters")
def every_split_has_datasets(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Where training has its own datasets, validation has too; and no split has its own datasets without training."""
    named, train = {split for split, _, _ in _named(config)}, config.section(TrainingSection)
    if named and "train" not in named:
        yield config.problem("is required", "train-data-paths", f"since there are {min(named)}-data-paths")
    elif named and "valid" not in named and train.eval_iters and train.eval_interval:
        yield config.problem("is required", "valid-data-paths", "or eval-iters: 0 for none")


@rule("train_data_weights", "valid_data_weights", "test_data_weights")
def weight_for_each_dataset(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """There are as many weights as datasets."""
    for split, paths, weights in _named(config):
        if weights is not None and len(weights) != len(paths):
            yield config.problem(f"has {len(weights)} weights for {len(paths)} datasets", f"{split}-data-weights")


@rule("weight_by_num_documents", "weighted_sampler_alpha")
def weights_from_one_place(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Weights are written or derived from the documents, and alpha applies only when they are derived."""
    blend, hint = config.section(BlendSection), "keep one of the two"
    if blend.weight_by_num_documents:
        for split, _, weights in _named(config):
            if weights is not None:
                yield config.problem("contradicts weight-by-num-documents", f"{split}-data-weights", hint)
        if not _named(config):
            yield config.problem("does nothing without train-data-paths", "weight-by-num-documents")
    elif config.is_set("weighted_sampler_alpha"):
        yield config.problem("does nothing without weight-by-num-documents", "weighted-sampler-alpha", "", "note")


@rule("data_path", "train_data_paths", "valid_data_paths", "test_data_paths")
def data_is_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The dataset exists."""
    prefix, named = config.section(DataSection).data_path, _named(config)
    for split, paths, _ in named:
        for path in paths:
            if not _any_file(Path(path)):
                yield _no_dataset(config, path, f"{split}-data-paths")
    if named:
        return
    if prefix is None:
        yield config.problem("is required", "data-path", "make a dataset with `neox data prepare`")
    elif not _any_file(Path(prefix)):
        yield _no_dataset(config, prefix, "data-path")


@rule("tokenizer_type")
def files_are_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The files that a component reads exist."""
    for chosen in (each for components in config.chosen.values() for each in components):
        cls = chosen.entry.component.settings
        for each in fields_of(cls) if cls is not None else ():
            path = getattr(chosen.settings, each.name)
            if each.info.file and path is not None and not _exists(Path(path)):
                yield config.problem(f"there is no file {path}", join(chosen.path, each.name), severity="start")


def _no_dataset(config: Config, prefix: str, key: str) -> Problem:
    hint = (
        "for data-impl: text, write the path of the text; else the path that `neox "
        "data prepare` printed, without .bin and .idx"
    )
    return config.problem(f"there is no dataset {prefix}", key, hint, "start")


def _exists(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()  # not a pipe, on which a read would wait
    except OSError:  # a name that no file can have
        return False


def _any_file(prefix: Path) -> bool:
    """Files whose names start with the prefix, or that match it as a pattern."""
    try:
        # Path.glob takes no absolute pattern. A name with brackets may be just a name.
        if glob.has_magic(str(prefix)) and any(True for _ in glob.iglob(str(prefix), recursive=True)):  # noqa: PTH207
            return True
        return any(
            path.name == prefix.name or path.name.startswith(f"{prefix.name}.") for path in prefix.parent.iterdir()
        )
    except OSError:
        return False
