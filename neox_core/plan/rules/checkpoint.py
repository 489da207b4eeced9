"""Rules of what is saved and what a run starts from."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.sections.training import CheckpointSection
from neox_core.config.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule


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


@rule("finetune", "no_load_optim", "no_load_rng", "load")
def finetune_has_source(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """What says how to load needs something to load."""
    checkpoint = config.section(CheckpointSection)
    for key in ("finetune", "no_load_optim", "no_load_rng"):
        if getattr(checkpoint, key) and checkpoint.load is None:
            yield config.problem("does nothing without load", key, "load: the folder of a checkpoint")


RULES: tuple[Rule, ...] = (
    save_has_interval,
    finetune_has_source,
)
