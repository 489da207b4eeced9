"""Rules of datasets and tokenizers."""

import glob
from collections.abc import Iterator
from pathlib import Path

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.convert import fields_of, join
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import objective_planner
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


@rule("data_path", "objective")
def data_is_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The datasets that the objective reads exist."""
    ask, prefix = getattr(objective_planner(config), "datasets", None), config.section(DataSection).data_path
    named = () if ask is None else ask(config)
    for key, path in named or (("data-path", prefix),):
        if path is None:
            yield config.problem("is required", key, "make a dataset with `neox data prepare`")
        elif not _any_file(Path(path)):
            yield _no_dataset(config, path, key)


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
