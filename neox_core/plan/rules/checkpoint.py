"""Rules of what is saved and what a run starts from."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.checkpoint import CheckpointSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.config.stores import KEYS, address_fault, split_address
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule


@rule("save", "save_interval", "keep_last_n_checkpoints")
def save_has_interval(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Checkpoints need a folder; without an interval the last step is saved, and extra-save-iters."""
    checkpoint = config.section(CheckpointSection)
    if checkpoint.save is not None and checkpoint.save_interval is None:
        said = "has no save-interval, so that the run saves at its end and at extra-save-iters"
        yield config.problem(said, "save", "save-interval: steps between checkpoints", "note")
    if checkpoint.save is None:
        for key in ("save_interval", "keep_last_n_checkpoints"):
            if getattr(checkpoint, key) is not None:
                yield config.problem("does nothing without save", key, "save: a folder for the checkpoints", "warning")


@rule("save", "load")
def stores_have_an_address(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The address of a store names a folder in it, and holds no credentials."""
    for key in KEYS:
        address = split_address(getattr(config.section(CheckpointSection), key))
        message, hint = ("", "") if address is None else address_fault(address[1])
        if message:
            yield config.problem(message, key, hint)


@rule("finetune", "no_load_optim", "no_load_rng", "load")
def finetune_has_source(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Keys about loading need a checkpoint to load."""
    checkpoint = config.section(CheckpointSection)
    for key in ("finetune", "no_load_optim", "no_load_rng"):
        if getattr(checkpoint, key) and checkpoint.load is None:
            yield config.problem("does nothing without load", key, "load: the folder of a checkpoint")


@rule("extra_save_iters", "save", "train_iters")
def extra_saves_can_be_made(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Extra steps to save at act within the run, and where there is a folder to save to."""
    checkpoint = config.section(CheckpointSection)
    extra = checkpoint.extra_save_iters
    if extra and checkpoint.save is None:
        yield config.problem("does nothing without save", "extra_save_iters", "save: a folder", "note")
    last = config.section(TrainingSection).train_iters
    if extra and max(extra) > last:
        yield config.problem(f"{max(extra)} is after train-iters {last}", "extra_save_iters", severity="note")


GENERATORS = ("no_load_rng", "no_save_rng")


@rule(*GENERATORS)
def no_loss_depends_on_a_generator(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Weights, dropout and the order of the data follow from the seed."""
    always = "weights, dropout and the order of the data follow from the seed; saved generators are for plugins"
    for key in filter(config.is_set, GENERATORS):
        yield config.problem(f"changes no number of the run: {always}", key, severity="note")
