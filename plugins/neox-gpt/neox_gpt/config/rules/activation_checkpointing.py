"""Rules of activation checkpointing."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import engine_planner, sharding
from neox_core.plan.rules.rule import rule
from neox_gpt.config.sections.activation_checkpointing import (
    SPELLINGS,
    ActivationCheckpointingSection,
    option,
    segments,
)
from neox_gpt.config.sections.model import ModelSection


@rule(*SPELLINGS, *(f"activation_checkpointing.{inner}" for inner in SPELLINGS.values()))
def checkpointing_spellings_agree(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Megatron's and DeepSpeed's spelling of one option agree."""
    section = config.section(ActivationCheckpointingSection)
    for key, inner in SPELLINGS.items():
        name, block = f"activation_checkpointing.{inner}", section.activation_checkpointing
        both = config.is_set(key) and config.is_set(name)
        if both and getattr(section, key) != getattr(block, inner):
            yield config.problem(f"differs from {key.replace('_', '-')}", name, "keep one of the two")


@rule(
    "checkpoint_num_layers",
    "deepspeed_activation_checkpointing",
    "distribute_checkpointed_activations",
    "checkpoint_activations",
)
def recomputing_is_on(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Options of recomputation apply only with checkpoint-activations."""
    section = config.section(ActivationCheckpointingSection)
    if section.checkpoint_activations:
        return
    if section.distribute_checkpointed_activations:
        yield config.problem("needs checkpoint-activations: true", "distribute_checkpointed_activations")
    if section.deepspeed_activation_checkpointing:
        said = "does nothing without checkpoint-activations: true"
        yield config.problem(said, "deepspeed_activation_checkpointing", severity="note")
    if config.is_set("checkpoint_num_layers") and section.checkpoint_num_layers != 1:
        yield config.problem(
            "does nothing without checkpoint-activations: true", "checkpoint_num_layers", severity="warning"
        )


@rule("deepspeed_activation_checkpointing", "engine")
def engine_has_the_function(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """deepspeed-activation-checkpointing needs an engine that has DeepSpeed's function."""
    section = config.section(ActivationCheckpointingSection)
    if section.deepspeed_activation_checkpointing and not engine_planner(config).recomputes:
        (engine,) = config.components("engine")
        yield config.problem(
            f"the engine {engine.entry.component.name} does not have DeepSpeed's function",
            "deepspeed_activation_checkpointing",
            "remove it: torch's function recomputes with the same results; or choose engine: deepspeed",
        )


@rule("deepspeed_activation_checkpointing", "zero_optimization.stage")
def recomputed_blocks_are_used_once(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """At ZeRO 2 and 3 DeepSpeed takes one gradient of a parameter, and its recomputation gives one for each layer."""
    section, model = config.section(ActivationCheckpointingSection), config.section(ModelSection)
    stage = sharding(config).stage
    shared = model.num_unique_layers not in (None, model.num_layers)
    if section.checkpoint_activations and section.deepspeed_activation_checkpointing and shared and stage >= 2:
        message = f"gives several gradients of a block that layers share, of which ZeRO {stage} takes one"
        hint = "remove it: torch's function recomputes with the same results"
        yield config.problem(message, "deepspeed_activation_checkpointing", hint)


@rule("checkpoint_num_layers", "num_layers")
def segment_fits_model(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A segment is not longer than the model."""
    layers, most = config.section(ActivationCheckpointingSection).checkpoint_num_layers, config.section(ModelSection)
    if layers > most.num_layers:
        yield config.problem(f"{layers} is more than num-layers {most.num_layers}", "checkpoint_num_layers")


@rule(*SPELLINGS, "deepspeed_activation_checkpointing", *(f"activation_checkpointing.{k}" for k in SPELLINGS.values()))
def options_are_deepspeeds(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The memory and timing options apply only with deepspeed-activation-checkpointing, where layers are recomputed."""
    section = config.section(ActivationCheckpointingSection)
    missing = "" if section.checkpoint_activations else "checkpoint-activations"
    if not section.deepspeed_activation_checkpointing:
        missing = "deepspeed-activation-checkpointing"
    if not missing:
        return
    config.note(*SPELLINGS)
    block = section.activation_checkpointing
    asked = [_spelled(config, key) for key in SPELLINGS if option(section, key)]
    if block is not None and block.number_checkpoints is not None:
        asked.append("activation_checkpointing.number_checkpoints")
    for key in asked:
        yield config.problem(f"does nothing without {missing}: true", key, "remove it, or set that", "note")


@rule("contiguous_checkpointing", "partition_activations", "activation_checkpointing.number_checkpoints")
def contiguous_buffer_has_a_size(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The contiguous buffer holds partitioned inputs, one for each segment of the model."""
    section, model = config.section(ActivationCheckpointingSection), config.section(ModelSection)
    if option(section, "contiguous_checkpointing") and not option(section, "partition_activations"):
        yield config.problem("needs partition-activations: true", _spelled(config, "contiguous_checkpointing"))
    block, wanted = section.activation_checkpointing, segments(section, model.num_layers)
    if block is not None and block.number_checkpoints not in (None, wanted):
        yield config.problem(
            f"{block.number_checkpoints} is not num-layers / checkpoint-num-layers, rounded up: {wanted}",
            "activation_checkpointing.number_checkpoints",
            "leave it out",
        )


@rule(
    "partition_activations",
    "activation_checkpointing.partition_activations",
    "distribute_checkpointed_activations",
    "model_parallel_size",
    "sequence_parallel",
)
def partitions_have_ranks(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Saved inputs are split over tensor-parallel ranks, which would otherwise all keep the same copy."""
    section, parallel = config.section(ActivationCheckpointingSection), config.section(ParallelismSection)
    parted = []
    if section.deepspeed_activation_checkpointing and option(section, "partition_activations"):
        parted.append(_spelled(config, "partition_activations"))
    if section.checkpoint_activations and section.distribute_checkpointed_activations:
        parted.append("distribute_checkpointed_activations")
    for key in parted:
        if parallel.sequence_parallel:
            yield config.problem(
                "contradicts sequence-parallel, where each rank keeps its own positions already", key, "remove it"
            )
        if parallel.model_parallel_size == 1:
            yield config.problem("does nothing with model-parallel-size 1", key, severity="warning")


@rule("distribute_checkpointed_activations", "deepspeed_activation_checkpointing")
def one_function_parts_inputs(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """DeepSpeed's function has its own switch for splitting saved inputs."""
    section = config.section(ActivationCheckpointingSection)
    if section.distribute_checkpointed_activations and section.deepspeed_activation_checkpointing:
        yield config.problem(
            "contradicts deepspeed-activation-checkpointing",
            "distribute_checkpointed_activations",
            "use partition-activations: true instead",
        )


@rule("checkpoint_in_cpu", "activation_checkpointing.cpu_checkpointing", "device")
def inputs_leave_the_device(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """On a CPU the inputs of segments are already in host memory."""
    section = config.section(ActivationCheckpointingSection)
    if section.deepspeed_activation_checkpointing and option(section, "checkpoint_in_cpu") and shape.device == "cpu":
        yield config.problem(
            "is for a GPU: on a CPU they are already in host memory", _spelled(config, "checkpoint_in_cpu")
        )


@rule("contiguous_checkpointing", "activation_checkpointing.contiguous_memory_optimization", "pipe_parallel_size")
def buffer_is_for_one_micro_batch(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """DeepSpeed's contiguous buffer has room for one micro-batch; in a pipeline several are in flight."""
    section = config.section(ActivationCheckpointingSection)
    piped = config.section(ParallelismSection).pipe_parallel_size > 1
    if piped and section.deepspeed_activation_checkpointing and option(section, "contiguous_checkpointing"):
        yield config.problem(
            "has room for one micro-batch, and a pipeline has several in flight",
            _spelled(config, "contiguous_checkpointing"),
            "false",
        )


def _spelled(config: Config, key: str) -> str:
    inner = f"activation_checkpointing.{SPELLINGS[key]}"
    return inner if config.is_set(inner) and not config.is_set(key) else key
