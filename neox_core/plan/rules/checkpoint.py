"""Rules of what is saved and what a run starts from."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.checkpoint import CheckpointSection, CheckpointWritingSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.config.stores import KEYS, address_fault, split_address
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule


@rule("save", "save_interval", "keep_last_n_checkpoints")
def save_has_interval(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Checkpoints need both a folder and an interval."""
    checkpoint = config.section(CheckpointSection)
    if checkpoint.save is not None and checkpoint.save_interval is None:
        yield config.problem("needs save-interval", "save", "save-interval: steps between checkpoints")
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
    """Extra steps to save at are within the run, and there is a folder to save to."""
    extra = config.section(CheckpointWritingSection).extra_save_iters
    if extra and config.section(CheckpointSection).save is None:
        yield config.problem("does nothing without save", "extra_save_iters", "save: a folder for the checkpoints")
    last = config.section(TrainingSection).train_iters
    if extra and max(extra) > last:
        yield config.problem(f"{max(extra)} is after train-iters {last}", "extra_save_iters")


SETTLED = {
    "checkpoint.load_universal": "checkpoints load on any number of ranks",
    "checkpoint.parallel_write.pipeline_stage": "every rank writes its share",
    "checkpoint.tag_validation": "ranks start from one checkpoint, which is checked, and count steps together",
    "no_load_rng": "weights, dropout and the order of the data follow from the seed; saved generators are for plugins",
    "no_save_rng": "weights, dropout and the order of the data follow from the seed; saved generators are for plugins",
}
"""Key -> what neox always does, whatever the value of the key."""


@rule(*SETTLED)
def settled_for_all_runs(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Checkpoints load in any layout, all ranks write them, and no loss depends on a random generator."""
    for cls in (CheckpointSection, CheckpointWritingSection):
        config.section(cls)
    for key, always in SETTLED.items():
        config.note(key)
        if config.is_set(key):
            yield config.problem(f"changes no number of the run: {always}", key, severity="note")


@rule("checkpoint.use_node_local_storage", "hostfile")
def local_storage_is_of_one_host(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The ranks of a run write one folder, so the local disk of a host works only for a run on that host."""
    key = "checkpoint.use_node_local_storage"
    local = config.section(CheckpointWritingSection).checkpoint.use_node_local_storage
    if local and len(shape.hosts) > 1:
        yield config.problem(
            f"the {len(shape.hosts)} hosts of this run write one folder, which must be on a shared disk",
            key,
            "false, and save: a folder that they share",
        )
    elif config.is_set(key):
        yield config.problem("changes nothing: save names the folder, on any disk", key, severity="note")
