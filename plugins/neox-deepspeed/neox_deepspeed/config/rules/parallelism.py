"""Rules of sharding beside a model that is cut over ranks."""

from collections.abc import Iterator

from neox_plain.api import PrecisionSection

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import architecture_planner, objective_planner
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.sections.zero import ZeroSection


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


@rule("data_types.grad_accum_dtype", "pipe_parallel_size", "bf16.enabled", "fp16.enabled")
def pipeline_accumulates_in_its_own_type(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """In a pipeline DeepSpeed 0.19.8 loses gradients that are added up in another type than the model's."""
    # Those of the output layer, since the loss is computed outside of the module, and those of tied weights.
    parallel, precision = config.section(ParallelismSection), config.section(PrecisionSection)
    dtype = precision.data_types.grad_accum_dtype
    if parallel.stages > 1 and dtype is not None and dtype != precision.dtype:
        said = f"{dtype} loses gradients of the output layer in a pipeline of a model in {precision.dtype}"
        yield config.problem(said, "data_types.grad_accum_dtype", f"use {precision.dtype}, or no pipeline")


@rule("pipe_partition_method", "pipe_parallel_size", "objective")
def stages_share_a_cross_entropy(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Stages share the output layer of an architecture that allows it, where the objective takes its cross-entropy."""
    parallel = config.section(ParallelismSection)
    if parallel.stages < 2 or parallel.pipe_partition_method != "time+head":
        return
    (architecture,), (objective,) = config.components("architecture"), config.components("objective")
    takes = getattr(objective_planner(config), "takes_cross_entropy", None)
    if not getattr(architecture_planner(config), "shares_output_layer", False):
        said = f"{architecture.entry.component.name}, whose output layer needs all positions of a sample at once"
    elif takes is None or not takes(objective.settings):
        said = f"{objective.entry.component.name}, which may need more of the output layer than the cross-entropy"
    else:
        return
    yield config.problem(f"time+head does not work with {said}", "pipe_partition_method", "use time")
