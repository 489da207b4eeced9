"""Which activations are computed again in the backward pass instead of being kept."""

from attrs import frozen

from neox_core.config.checks import above
from neox_core.config.setting import setting


@frozen
class ActivationCheckpointingBlock:
    """DeepSpeed's spelling of the options of its function; a key of the same meaning at the top must agree."""

    partition_activations: bool = setting(
        False, help="As `partition-activations` at the top.", changes="speed", origin="deepspeed"
    )
    cpu_checkpointing: bool = setting(
        False, help="As `checkpoint-in-cpu` at the top.", changes="speed", origin="deepspeed"
    )
    contiguous_memory_optimization: bool = setting(
        False, help="As `contiguous-checkpointing` at the top.", changes="speed", origin="deepspeed"
    )
    number_checkpoints: int | None = setting(
        None,
        help="Segments of the model, for the buffer. Default: num-layers / checkpoint-num-layers, rounded up.",
        check=above(0),
        changes="speed",
        origin="deepspeed",
    )
    synchronize_checkpoint_boundary: bool = setting(
        False, help="As `synchronize-each-layer` at the top.", changes="speed", origin="deepspeed"
    )
    profile: bool = setting(False, help="As `profile-backward` at the top.", changes="output", origin="deepspeed")


@frozen
class ActivationCheckpointingSection:
    """Memory for time: gradients stay what they are."""

    checkpoint_activations: bool = setting(
        False, help="Recompute activations in the backward pass.", changes="speed", origin="megatron"
    )
    checkpoint_num_layers: int = setting(
        1,
        help="Consecutive layers that are recomputed together; of each segment the input is kept.",
        check=above(0),
        changes="speed",
        origin="megatron",
    )
    distribute_checkpointed_activations: bool = setting(
        False,
        help="Each tensor-parallel rank keeps a part of a segment's input, without DeepSpeed's function.",
        changes="speed",
        origin="megatron",
    )
    deepspeed_activation_checkpointing: bool = setting(
        False,
        help="Recompute by DeepSpeed's function, which has the five options below, instead of by torch's.",
        changes="speed",
        origin="megatron",
    )
    partition_activations: bool = setting(
        False,
        help="Each tensor-parallel rank keeps a part of a segment's input.",
        changes="speed",
        origin="megatron",
    )
    contiguous_checkpointing: bool = setting(
        False, help="Copy the inputs of all segments into one buffer.", changes="speed", origin="megatron"
    )
    checkpoint_in_cpu: bool = setting(
        False, help="Keep the inputs of segments in the host's memory.", changes="speed", origin="megatron"
    )
    synchronize_each_layer: bool = setting(
        False, help="Wait for the device before and after each segment.", changes="speed", origin="megatron"
    )
    profile_backward: bool = setting(
        False, help="Log how long each segment takes, forward and backward.", changes="output", origin="megatron"
    )
    activation_checkpointing: ActivationCheckpointingBlock | None = setting(
        None, help="DeepSpeed's block of the same options.", changes="speed", origin="deepspeed"
    )


SPELLINGS = {
    "partition_activations": "partition_activations",
    "contiguous_checkpointing": "contiguous_memory_optimization",
    "checkpoint_in_cpu": "cpu_checkpointing",
    "synchronize_each_layer": "synchronize_checkpoint_boundary",
    "profile_backward": "profile",
}
"""Options of DeepSpeed's function: the key at the top, and the one in its block."""


def option(section: ActivationCheckpointingSection, key: str) -> bool:
    """Whether an option of SPELLINGS is on, in whichever spelling; where both are written, they agree."""
    block = section.activation_checkpointing
    return bool(getattr(section, key) or (block is not None and getattr(block, SPELLINGS[key])))


def segments(section: ActivationCheckpointingSection, num_layers: int) -> int:
    """How many segments the layers make up."""
    return -(-num_layers // section.checkpoint_num_layers)
