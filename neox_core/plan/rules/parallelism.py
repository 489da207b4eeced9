"""Rules of how a model and a batch are split over ranks."""

from collections.abc import Iterator

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule


@rule("model_parallel_size", "pipe_parallel_size", "num_gpus")
def ranks_make_whole_copies(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The ranks are a whole number of copies of the model, each over model-parallel-size x pipe-parallel-size ranks."""
    parallel = config.section(ParallelismSection)
    tensor, stages, ranks = parallel.model_parallel_size, parallel.stages, parallel.ranks_of_a_copy
    if shape.num_ranks % ranks:
        yield config.problem(
            f"a copy of the model takes {tensor} x {stages} = {ranks} ranks, and there are {shape.num_ranks}",
            "model_parallel_size" if tensor > 1 else "pipe_parallel_size",
            "choose model-parallel-size x pipe-parallel-size so that it divides the ranks",
        )


@rule("pipe_partition_method", "pipe_parallel_size")
def partition_has_pipeline(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """pipe-partition-method applies only with a pipeline."""
    stages = config.section(ParallelismSection).pipe_parallel_size
    if config.is_set("pipe_partition_method") and stages < 2:
        yield config.problem(
            f"does nothing with pipe-parallel-size {stages}", "pipe_partition_method", "remove it", "warning"
        )


@rule("sequence_parallel", "model_parallel_size", "seq_length")
def positions_are_shared(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Sequence parallelism splits positions equally over the ranks of model-parallel-size."""
    parallel, seq = config.section(ParallelismSection), config.section(DataSection).seq_length
    if not parallel.sequence_parallel:
        return
    if parallel.model_parallel_size == 1:
        yield config.problem("does nothing with model-parallel-size 1", "sequence_parallel", "remove it")
    elif seq % parallel.model_parallel_size:
        yield config.problem(
            f"{seq} cannot be divided by model-parallel-size {parallel.model_parallel_size}", "seq_length"
        )


@rule("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
def batch_fits(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """train_batch_size = micro-batch x accumulation x data-parallel ranks."""
    try:
        shape.batch(config)
    except MisfitError as error:
        yield config.problem(error.message, error.key, error.hint)
