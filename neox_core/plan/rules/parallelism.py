"""Rules of how a model is split over ranks."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.model import ModelSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.precision import PrecisionSection
from neox_core.config.schema.sections.zero import ZeroSection
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


@rule("pipe_parallel_size", "zero_optimization.stage")
def pipeline_keeps_gradients(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A pipeline adds up gradients over micro-batches, so they cannot be sharded: ZeRO stage 0 or 1."""
    stages = config.section(ParallelismSection).pipe_parallel_size
    stage = config.section(ZeroSection).zero_optimization.stage
    if stages > 1 and stage > 1:
        yield config.problem(
            f"{stage} does not work with pipe-parallel-size {stages}",
            "zero_optimization.stage",
            "use stage: 1, or no pipeline",
        )


@rule(
    "model_parallel_size",
    "hidden_size",
    "num_attention_heads",
    "num_kv_heads",
    "intermediate_size",
    "padded_vocab_size",
    "make_vocab_size_divisible_by",
)
def widths_divide(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Ranks that share layers have equal parts of every width that is split."""
    tensor, model = config.section(ParallelismSection).model_parallel_size, config.section(ModelSection)
    data = config.section(DataSection)
    rows = "padded_vocab_size" if data.padded_vocab_size is not None else "make_vocab_size_divisible_by"
    widths = {
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_kv_heads": model.num_kv_heads,
        "intermediate_size": model.intermediate_size,
        rows: data.padded_vocab_size or data.make_vocab_size_divisible_by,
    }
    for key, width in widths.items():
        if width is not None and width % tensor:
            hint = f"use {width * tensor}, to which GPT-NeoX pads" if key == "make_vocab_size_divisible_by" else ""
            yield config.problem(f"{width} cannot be divided by model-parallel-size {tensor}", key, hint)


@rule("pipe_partition_method", "pipe_parallel_size")
def partition_has_pipeline(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """pipe-partition-method applies only with a pipeline."""
    stages = config.section(ParallelismSection).pipe_parallel_size
    if config.is_set("pipe_partition_method") and stages < 2:
        yield config.problem(
            f"does nothing with pipe-parallel-size {stages}", "pipe_partition_method", "remove it", "warning"
        )


@rule("pipe_parallel_size", "num_layers")
def stages_have_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Every stage of a pipeline has at least one layer."""
    stages, layers = config.section(ParallelismSection).pipe_parallel_size, config.section(ModelSection).num_layers
    if stages > layers:
        yield config.problem(f"{stages} stages cannot share {layers} layers", "pipe_parallel_size")


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


@rule("model_parallel_size", "pipe_parallel_size", "zero_optimization.stage", "bf16.enabled", "fp16.enabled")
def half_precision_is_sharded(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """DeepSpeed's 16-bit optimizers below ZeRO stage 1 compute the norm of a split gradient wrongly."""
    parallel, precision = config.section(ParallelismSection), config.section(PrecisionSection)
    cut, staged = parallel.ranks_of_a_copy > 1, parallel.stages > 1
    # Without a pipeline, neox computes the norm of bf16 itself. In one it cannot: DeepSpeed's optimizer for bf16 shards
    # the gradients there even at stage 0.
    wrong = cut if precision.dtype == "fp16" else staged and precision.dtype == "bf16"
    if wrong and config.section(ZeroSection).zero_optimization.stage == 0:
        yield config.problem(
            "0 computes the norm of a gradient wrongly where 16-bit models are split over ranks",
            "zero_optimization.stage",
            "stage: 1",
        )
