"""Rules of how a model is cut over ranks."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.sections.host import DataSection
from neox_core.config.sections.model import ModelSection
from neox_core.config.sections.parallelism import ParallelismSection
from neox_core.config.sections.zero import ZeroSection
from neox_core.config.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule


@rule("model_parallel_size", "pipe_parallel_size", "num_gpus")
def ranks_make_whole_copies(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The ranks are a whole number of copies of the model, each over model-parallel-size x pipe-parallel-size ranks."""
    parallel = config.section(ParallelismSection)
    tensor, stages = parallel.model_parallel_size, max(1, parallel.pipe_parallel_size)
    if shape.num_ranks % (tensor * stages):
        yield config.problem(
            f"a copy of the model takes {tensor} x {stages} = {tensor * stages} ranks, and there are {shape.num_ranks}",
            "model_parallel_size" if tensor > 1 else "pipe_parallel_size",
            "model-parallel-size x pipe-parallel-size has to divide the ranks",
        )


@rule("pipe_parallel_size", "zero_optimization.stage")
def pipeline_keeps_gradients(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A pipeline adds up gradients over micro-batches, so they cannot be sharded: ZeRO stage 0 or 1."""
    stages = config.section(ParallelismSection).pipe_parallel_size
    stage = config.section(ZeroSection).zero_optimization.stage
    if stages > 1 and stage > 1:
        yield config.problem(
            f"{stage} is not for pipe-parallel-size {stages}", "zero_optimization.stage", "stage: 1, or no pipeline"
        )


@rule("model_parallel_size", "hidden_size", "num_attention_heads", "intermediate_size", "padded_vocab_size")
def widths_divide(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Ranks that share layers have equal parts of every width that is cut."""
    tensor, model = config.section(ParallelismSection).model_parallel_size, config.section(ModelSection)
    widths = {
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "padded_vocab_size": config.section(DataSection).padded_vocab_size,
    }
    for key, width in widths.items():
        if width is not None and width % tensor:
            yield config.problem(f"{width} cannot be divided by model-parallel-size {tensor}", key)


@rule("pipe_partition_method", "pipe_parallel_size")
def partition_has_pipeline(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """How layers are dealt to stages matters where there are stages."""
    stages = config.section(ParallelismSection).pipe_parallel_size
    if config.is_set("pipe_partition_method") and stages < 2:
        yield config.problem(
            f"does nothing with pipe-parallel-size {stages}", "pipe_partition_method", "remove it", "warning"
        )


RULES: tuple[Rule, ...] = (
    ranks_make_whole_copies,
    pipeline_keeps_gradients,
    widths_divide,
    partition_has_pipeline,
)
