"""Rules of the block `elasticity`."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem
from neox_core.config.problem import MisfitError
from neox_core.errors import NeoxError
from neox_elasticity.batch import BLOCK, faults, in_words, plan_batch
from neox_elasticity.listed import FILTERS, all_hosts, slots_of, whole_hosts
from neox_elasticity.settings import ElasticityBlock
from neox_elasticity.starts import is_one_of_several

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def problems(config: Any, cluster: Any) -> Iterator[Problem]:
    """All problems that the rules find, and a note of the batch and the numbers of ranks."""
    chosen = next((each for each in config.components("callback") if each.entry.component.name == BLOCK), None)
    if chosen is None:
        return
    if chosen.settings.max_restarts is not None:
        yield from restarts_can_be_made(config, chosen.settings.elasticity)
    block: ElasticityBlock = chosen.settings.elasticity
    if not block.enabled:
        return
    for key in ("max_train_batch_size", "micro_batch_sizes"):
        if not config.is_set(f"{BLOCK}.{key}"):
            yield config.problem("is required while elasticity is enabled", f"{BLOCK}.{key}", "set it")
    if block.min_time:
        yield config.problem("is read by `neox elastic` only", f"{BLOCK}.min_time", severity="note")
    yield from batch_is_elastic(config, block)
    yield from copies_agree(config, block)
    yield from (config.problem(each.message, each.key, each.hint) for each in [*faults(block)][1:])  # first: batch_fits
    try:
        plan = plan_batch(chosen.settings, cluster.num_ranks, cluster.data_parallel(config))
    except MisfitError:  # which the rule of the batch reports
        return
    if plan is not None:
        yield config.problem(in_words(block, plan, _ranks_of_a_copy(config)), f"{BLOCK}.enabled", severity="note")


def restarts_can_be_made(config: Any, block: ElasticityBlock) -> Iterator[Problem]:
    """A run starts again from what it has saved, on slots that the command chooses."""
    if config.value("save") is None:
        yield config.problem("is required by max-restarts", "save", "runs continue from their checkpoints")
    if is_one_of_several():
        return
    if block.enabled:
        for key in (each for each, default in FILTERS.items() if config.value(each) != default):
            yield config.problem("contradicts max-restarts, which chooses among the slots", key, "remove it")
        return
    try:
        listed = all_hosts(config)
        shape, found = whole_hosts(config, listed)
        slots = slots_of(listed)()[1]
    except NeoxError:  # of the hostfile, which the core reports
        return
    yield from found
    if said := shape.spare_in_words(slots):
        yield config.problem(said, "max_restarts", severity="note")


def batch_is_elastic(config: Any, block: ElasticityBlock) -> Iterator[Problem]:
    """Batch keys outside of the block are an error, unless ignore_non_elastic_batch_info."""
    for key in (each for each in BATCH_KEYS if config.value(each) is not None):
        if block.ignore_non_elastic_batch_info:
            yield config.problem("is ignored: elasticity chooses the batch", key, severity="note")
        else:
            hint = f"remove it, or {BLOCK}.ignore_non_elastic_batch_info: true"
            yield config.problem("contradicts elasticity, which chooses the batch", key, hint)


def copies_agree(config: Any, block: ElasticityBlock) -> Iterator[Problem]:
    """With version 0.2, model_parallel_size of the block is the number of ranks of a copy of the model."""
    ranks, key = _ranks_of_a_copy(config), f"{BLOCK}.model_parallel_size"
    if block.version == 0.2 and block.model_parallel_size != ranks:
        yield config.problem(
            f"is {block.model_parallel_size}, and the ranks of a copy of the model are {ranks}",
            key,
            f"set it to {ranks}",
        )


def _ranks_of_a_copy(config: Any) -> int:
    ranks: int = config.value("model_parallel_size") * max(1, config.value("pipe_parallel_size"))
    return ranks
