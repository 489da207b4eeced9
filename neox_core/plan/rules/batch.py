"""The batch triple fits the cluster."""

from collections.abc import Iterator

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.sections.training import BatchSection
from neox_core.config.schema.structure import Config
from neox_core.plan.batch import solve_batch
from neox_core.plan.cluster import ClusterShape, data_parallel
from neox_core.plan.rules.rule import rule


@rule("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
def batch_fits(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """train_batch_size = micro-batch x accumulation x data-parallel ranks."""
    batch = config.section(BatchSection)
    try:
        solve_batch(
            batch.train_batch_size,
            batch.train_micro_batch_size_per_gpu,
            batch.gradient_accumulation_steps,
            data_parallel(config, shape),
        )
    except MisfitError as error:
        yield config.problem(error.message, error.key, error.hint)
