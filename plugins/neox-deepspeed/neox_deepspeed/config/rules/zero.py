"""Rules of ZeRO's sharding and of the exchange of gradients."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from neox_plain.api import PrecisionSection

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape, data_parallel
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.owners import owns_parameters
from neox_deepspeed.config.sections.communication import CommunicationSection
from neox_deepspeed.config.sections.zero import ZeroBlock, ZeroSection

BLOCK = "zero_optimization"
STAGE_OF_KEY: dict[str, tuple[int, ...]] = {
    "ignore_unused_parameters": (2,),
    "allgather_partitions": (1,),
    "grad_hooks": (1,),
    "round_robin_gradients": (1, 2),
    "sub_group_size": (3,),
    "stage3_max_live_parameters": (3,),
    "stage3_max_reuse_distance": (3,),
    "stage3_prefetch_bucket_size": (3,),
    "stage3_param_persistence_threshold": (3,),
    "stage3_gather_16bit_weights_on_model_save": (3,),
    "zero_hpz_partition_size": (3,),
    "zero_quantized_weights": (3,),
    "zero_quantized_gradients": (3,),
}
_SHARDED = ("allgather_bucket_size", "reduce_bucket_size", "overlap_comm", "reduce_scatter", "contiguous_gradients")


def _zero(config: Config) -> ZeroBlock:
    return config.section(ZeroSection).zero_optimization


@rule(f"{BLOCK}.stage", *(f"{BLOCK}.{key}" for key in STAGE_OF_KEY))
def keys_of_the_stage(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Some keys of ZeRO apply at some stages only; a value that asks for the only behaviour may stay."""
    zero = _zero(config)
    at_rest = ZeroBlock()
    for key, stages in STAGE_OF_KEY.items():
        path = f"{BLOCK}.{key}"
        if config.is_set(path) and zero.stage not in stages and getattr(zero, key) != getattr(at_rest, key):
            listed = " or ".join(map(str, stages))
            yield config.problem(f"applies at stage {listed} only, and the stage is {zero.stage}", path, "remove it")


@rule(f"{BLOCK}.stage", "optimizer.type", *(f"{BLOCK}.{key}" for key in (*_SHARDED, "round_robin_gradients")))
def nothing_to_shard(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Keys about slices do nothing at stage 0, or with ranks that own whole parameters."""
    owned = owns_parameters(config)
    keys = (*_SHARDED, "round_robin_gradients") if owned else _SHARDED
    written = [f"{BLOCK}.{key}" for key in keys if config.is_set(f"{BLOCK}.{key}")]
    if written and (owned or _zero(config).stage == 0):
        where = "where ranks own whole parameters" if owned else "at stage 0"
        others = ", ".join(key.rpartition(".")[2] for key in written[1:])
        said = f"does nothing {where}" + (f", nor do {others}" if others else "")
        yield config.problem(said, written[0], severity="note")


@rule(f"{BLOCK}.allgather_bucket_size")
def gathered_at_once(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """DeepSpeed gathers each group of parameters at once, since torch 1.13 supports it."""
    zero = _zero(config)
    sliced = zero.stage > 0 and not owns_parameters(config)
    if sliced and zero.allgather_bucket_size != ZeroBlock().allgather_bucket_size:
        yield config.problem(
            "DeepSpeed 0.19.8 always gathers each group of parameters at once",
            f"{BLOCK}.allgather_bucket_size",
            severity="note",
        )


@rule(f"{BLOCK}.zero_quantized_weights", f"{BLOCK}.zero_quantized_gradients", f"{BLOCK}.reduce_scatter", "device")
def quantizer_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Quantised weights and gradients need a GPU, gradients also reduce_scatter."""
    zero = _zero(config)
    for key in ("zero_quantized_weights", "zero_quantized_gradients"):
        if getattr(zero, key) and shape.device == "cpu":
            yield config.problem("needs a CUDA kernel, and this run is on the CPU", f"{BLOCK}.{key}", "remove it")
    if zero.zero_quantized_gradients and not zero.reduce_scatter:
        yield config.problem("needs reduce_scatter: true", f"{BLOCK}.zero_quantized_gradients")


@rule("compile", f"{BLOCK}.stage", "bf16.enabled", "fp16.enabled", "torch_autocast.enabled", "amp.enabled")
def compiled_layers_learn(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """With torch before 2.12, compiled layers get gradients of 0 at stage 3 where they compute in 16 bits."""
    precision = config.section(PrecisionSection)
    halved = precision.dtype != "fp32" or precision.autocast
    if _zero(config).stage == 3 and halved and config.value("compile") and (torch := _torch_before_2_12()):
        said = f"torch {torch} gives compiled layers gradients of 0 at ZeRO stage 3 in 16 bits, so they would not learn"
        yield config.problem(said, "compile", "compile: false, another stage, or torch 2.12 or later")


def _torch_before_2_12() -> str:
    """The version of the torch that is installed, "" where it is 2.12 or later, or none is."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        return ""
    major, minor = found.split(".")[:2]
    return found if (int(major), int(minor)) < (2, 12) else ""


@rule(f"{BLOCK}.zero_hpz_partition_size", f"{BLOCK}.offload_param.device")
def second_copy_fits(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The second copy of the parameters is sharded over a divisor of the ranks, and is in memory."""
    size, offload = _zero(config).zero_hpz_partition_size, _zero(config).offload_param
    if size > 1 and offload is not None and offload.device == "nvme":
        yield config.problem(
            "makes a second copy, which DeepSpeed 0.19.8 cannot put into files",
            f"{BLOCK}.zero_hpz_partition_size",
            "use 1, or offload_param: {device: cpu}",
        )
    ranks = data_parallel(config, shape)
    if ranks % size:
        yield config.problem(f"{size} does not divide the {ranks} ranks", f"{BLOCK}.zero_hpz_partition_size")


@rule("prescale_gradients", "gradient_predivide_factor", f"{BLOCK}.reduce_scatter", f"{BLOCK}.stage")
def scaling_needs_all_reduce(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """ZeRO's reduce-scatter ignores the keys that scale gradients."""
    zero, communication = _zero(config), config.section(CommunicationSection)
    if zero.stage == 0 or not zero.reduce_scatter or owns_parameters(config):
        return
    hint = "zero_optimization: {reduce_scatter: false}, or remove it"
    if communication.prescale_gradients:
        yield config.problem("has no effect on ZeRO's reduce-scatter", "prescale_gradients", hint)
    if communication.gradient_predivide_factor != 1.0:
        yield config.problem("has no effect on ZeRO's reduce-scatter", "gradient_predivide_factor", hint)


@rule("prescale_gradients", "gradient_predivide_factor")
def one_scaling(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Gradients are divided before the sum, or before and after it by a factor."""
    communication = config.section(CommunicationSection)
    if communication.prescale_gradients and communication.gradient_predivide_factor != 1.0:
        yield config.problem("does nothing with prescale_gradients", "gradient_predivide_factor", "keep one")


@rule(
    "sparse_gradients",
    f"{BLOCK}.stage",
    "no_weight_tying",
    "model_parallel_size",
    "pipe_parallel_size",
    "bf16.enabled",
    "fp16.enabled",
    "gradient_predivide_factor",
)
def rows_of_a_whole_table(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Rows can be sent only of an fp32 table that is whole on every rank and not tied to the head."""
    communication, parallel = config.section(CommunicationSection), config.section(ParallelismSection)
    if not communication.sparse_gradients:
        return
    precision, stage = config.section(PrecisionSection), _zero(config).stage
    reasons = (
        (
            not config.value("no_weight_tying"),
            "the gradient of the head has every row",
            "no-weight-tying: true",
        ),
        (stage > 0, f"does not work at ZeRO stage {stage}", "use zero_optimization: {stage: 0}"),
        (
            parallel.ranks_of_a_copy > 1,
            "works with data parallelism only",
            "use model-parallel-size and pipe-parallel-size 1",
        ),
        (
            precision.dtype != "fp32",
            "is for a model in fp32",
            "use torch_autocast: {enabled: true} for matmuls in bf16",
        ),
        (
            communication.gradient_predivide_factor != 1.0,
            "DeepSpeed 0.19.8 does not divide rows by gradient_predivide_factor",
            "use prescale_gradients: true, which divides everything before the sum",
        ),
    )
    yield from (config.problem(message, "sparse_gradients", hint) for wrong, message, hint in reasons if wrong)
    if shape.num_ranks == 1:
        yield config.problem("sends nothing on one rank", "sparse_gradients", severity="note")


@rule(f"{BLOCK}.overlap_comm", "pipe_parallel_size")
def no_overlap_in_a_pipeline(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The pipeline engine reduces only after the backward pass."""
    if _zero(config).overlap_comm and config.section(ParallelismSection).pipe_parallel_size > 1:
        said = "does nothing: a pipeline reduces the gradients after the backward pass"
        yield config.problem(said, f"{BLOCK}.overlap_comm", severity="note")


@rule(f"{BLOCK}.grad_hooks", f"{BLOCK}.overlap_comm", f"{BLOCK}.stage", "optimizer.type")
def hooks_overlap(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """At stage 1 hooks of the backward pass reduce gradients with overlap_comm, and nothing does without it."""
    zero, path = _zero(config), f"{BLOCK}.grad_hooks"
    if zero.stage != 1 or not config.is_set(path):
        return
    overlaps = zero.overlap_comm and not owns_parameters(config)
    if overlaps and not zero.grad_hooks:
        yield config.problem("false contradicts overlap_comm: true, which reduces from hooks", path, "keep one")
    elif not overlaps:
        said = "changes nothing: without overlap_comm stage 1 reduces gradients after the backward pass"
        yield config.problem(said, path, "overlap_comm: true" if zero.grad_hooks else "", severity="note")


@rule(f"{BLOCK}.elastic_checkpoint")
def checkpoints_are_elastic(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Checkpoints always load on any number of ranks."""
    if not _zero(config).elastic_checkpoint:
        yield config.problem(
            "changes nothing: checkpoints load on any number of ranks", f"{BLOCK}.elastic_checkpoint", severity="note"
        )
