"""Which activations are computed again in the backward pass instead of being kept."""

from typing import Any

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above


def _deepspeed(default: Any, *, help: str, **more: Any) -> Any:
    """A setting of the block."""
    return setting(default, help=help, changes="speed", origin="deepspeed", **more)


def _megatron(default: Any, *, help: str, **more: Any) -> Any:
    """A setting at the top."""
    return setting(default, help=help, changes="speed", origin="megatron", **more)


@frozen
class ActivationCheckpointingBlock:
    """DeepSpeed's spelling of the options of its function; a top-level key of the same meaning must agree."""

    partition_activations: bool = _deepspeed(False, help="As `partition-activations` at the top.")
    cpu_checkpointing: bool = _deepspeed(False, help="As `checkpoint-in-cpu` at the top.")
    contiguous_memory_optimization: bool = _deepspeed(False, help="As `contiguous-checkpointing` at the top.")
    number_checkpoints: int | None = _deepspeed(
        None,
        help="Segments of the model, for the buffer. Default: num-layers / checkpoint-num-layers, rounded up.",
        check=above(0),
    )
    synchronize_checkpoint_boundary: bool = _deepspeed(False, help="As `synchronize-each-layer` at the top.")
    profile: bool = setting(False, help="As `profile-backward` at the top.", changes="output", origin="deepspeed")


@frozen
class ActivationCheckpointingSection:
    """Recompute activations to save memory; gradients do not change."""

    checkpoint_activations: bool = _megatron(False, help="Recompute activations in the backward pass.")
    checkpoint_num_layers: int = _megatron(
        1,
        help="Consecutive layers that are recomputed together; the input of each such segment is kept.",
        check=above(0),
    )
    distribute_checkpointed_activations: bool = _megatron(
        False, help="Each tensor-parallel rank keeps a part of a segment's input, without DeepSpeed's function."
    )
    deepspeed_activation_checkpointing: bool = _megatron(
        False, help="Recompute by DeepSpeed's function, which has the five options below, instead of torch's."
    )
    partition_activations: bool = _megatron(False, help="Each tensor-parallel rank keeps a part of a segment's input.")
    contiguous_checkpointing: bool = _megatron(False, help="Copy the inputs of all segments into one buffer.")
    checkpoint_in_cpu: bool = _megatron(False, help="Keep the inputs of segments in the host's memory.")
    synchronize_each_layer: bool = _megatron(False, help="Wait for the device before and after each segment.")
    profile_backward: bool = setting(
        False, help="Log how long each segment takes, forward and backward.", changes="output", origin="megatron"
    )
    activation_checkpointing: ActivationCheckpointingBlock | None = _deepspeed(
        None, help="DeepSpeed's block of the same options."
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
    """Whether an option of SPELLINGS is on, in either spelling; where both are written, they agree."""
    block = section.activation_checkpointing
    return bool(getattr(section, key) or (block is not None and getattr(block, SPELLINGS[key])))


def segments(section: ActivationCheckpointingSection, num_layers: int) -> int:
    """How many segments the layers make up."""
    return -(-num_layers // section.checkpoint_num_layers)
