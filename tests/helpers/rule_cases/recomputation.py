"""Rules about activation checkpointing."""

from rule_cases.case import CPU, Case

CASES: dict[str, Case] = {
    "buffer_is_for_one_micro_batch": (
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "partition-activations=true",
            "contiguous-checkpointing=true",
            "num_gpus=4",
            "model-parallel-size=2",
            "pipe-parallel-size=2",
        ),
        "error: contiguous-checkpointing: has room for one micro-batch, and a pipeline has several in flight",
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "num_gpus=2",
            "pipe-parallel-size=2",
        ),
        CPU,
    ),
    "one_function_parts_inputs": (
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "distribute-checkpointed-activations=true",
            "num_gpus=2",
            "model-parallel-size=2",
        ),
        "error: distribute-checkpointed-activations: contradicts deepspeed-activation-checkpointing",
        (
            "checkpoint-activations=true",
            "distribute-checkpointed-activations=true",
            "num_gpus=2",
            "model-parallel-size=2",
        ),
        CPU,
    ),
    "checkpointing_spellings_agree": (
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "synchronize-each-layer=true",
            "activation_checkpointing={synchronize_checkpoint_boundary: false}",
        ),
        "error: activation_checkpointing.synchronize_checkpoint_boundary: differs from synchronize-each-layer",
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "synchronize-each-layer=true",
            "activation_checkpointing={synchronize_checkpoint_boundary: true}",
        ),
        CPU,
    ),
    "recomputing_is_on": (
        ("deepspeed-activation-checkpointing=true",),
        "note: deepspeed-activation-checkpointing: does nothing without checkpoint-activations: true",
        ("deepspeed-activation-checkpointing=true", "checkpoint-activations=true"),
        CPU,
    ),
    "recomputed_blocks_are_used_once": (
        (
            *("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "num-unique-layers=1"),
            *("zero_optimization.stage=3", "zero-allow-untested-optimizer=true"),
        ),
        (
            "error: deepspeed-activation-checkpointing: gives several gradients of a block that layers share, of which"
            " ZeRO 3 takes one (remove it"
        ),
        (
            *("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "num-unique-layers=1"),
            "zero_optimization.stage=1",
        ),
        CPU,
    ),
    "segment_fits_model": (
        ("checkpoint-activations=true", "checkpoint-num-layers=3"),
        "error: checkpoint-num-layers: 3 is more than num-layers 2",
        ("checkpoint-activations=true", "checkpoint-num-layers=2"),
        CPU,
    ),
    "options_are_deepspeeds": (
        ("checkpoint-activations=true", "profile-backward=true"),
        "note: profile-backward: does nothing without deepspeed-activation-checkpointing: true",
        ("checkpoint-activations=true", "profile-backward=true", "deepspeed-activation-checkpointing=true"),
        CPU,
    ),
    "contiguous_buffer_has_a_size": (
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "activation_checkpointing={number_checkpoints: 1}",
        ),
        "error: activation_checkpointing.number_checkpoints: 1 is not num-layers / checkpoint-num-layers",
        (
            "checkpoint-activations=true",
            "deepspeed-activation-checkpointing=true",
            "activation_checkpointing={number_checkpoints: 2}",
        ),
        CPU,
    ),
    "partitions_have_ranks": (
        ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "partition-activations=true"),
        "warning: partition-activations: does nothing with model-parallel-size 1",
        ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true"),
        CPU,
    ),
    "inputs_leave_the_device": (
        ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "checkpoint-in-cpu=true"),
        "error: checkpoint-in-cpu: is for a GPU: on a CPU they are already in host memory",
        ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "checkpoint-in-cpu=false"),
        CPU,
    ),
}
