"""Rules about ZeRO, its offload, and how gradients are reduced."""

from rule_cases.case import CPU, GPU, Case

CASES: dict[str, Case] = {
    "keys_of_the_stage": (
        ("zero_optimization={stage: 1, stage3_max_live_parameters: 1e6}",),
        "error: zero_optimization.stage3_max_live_parameters: applies at stage 3 only, and the stage is 1",
        ("zero_optimization={stage: 1, round_robin_gradients: true, zero_hpz_partition_size: 1}", "num_gpus=2"),
        CPU,
    ),
    "nothing_to_shard": (
        ("zero_optimization={stage: 0, reduce_bucket_size: 1e6}",),
        "note: zero_optimization.reduce_bucket_size: does nothing at stage 0",
        ("zero_optimization={stage: 1, reduce_bucket_size: 1e6}", "num_gpus=2"),
        CPU,
    ),
    "gathered_at_once": (
        ("zero_optimization={stage: 1, allgather_bucket_size: 1e6}",),
        "note: zero_optimization.allgather_bucket_size: DeepSpeed 0.19.8 always gathers each group",
        ("zero_optimization={stage: 1, allgather_bucket_size: 5e8}",),
        CPU,
    ),
    "hooks_overlap": (
        ("zero_optimization={stage: 1, overlap_comm: true, grad_hooks: false}", "num_gpus=2"),
        "error: zero_optimization.grad_hooks: false contradicts overlap_comm: true, which reduces from",
        ("zero_optimization={stage: 1, overlap_comm: true, grad_hooks: true}", "num_gpus=2"),
        CPU,
    ),
    "quantizer_there": (
        (
            "zero_optimization={stage: 3, zero_quantized_gradients: true, reduce_scatter: false}",
            "optimizer.type=AnyStage",
        ),
        "error: zero_optimization.zero_quantized_gradients: needs reduce_scatter: true",
        ("zero_optimization={stage: 3, zero_quantized_gradients: true}", "optimizer.type=AnyStage"),
        GPU,
    ),
    "second_copy_fits": (
        ("zero_optimization={stage: 3, zero_hpz_partition_size: 3}", "optimizer.type=AnyStage"),
        "error: zero_optimization.zero_hpz_partition_size: 3 does not divide the 2 ranks",
        ("zero_optimization={stage: 3, zero_hpz_partition_size: 2}", "optimizer.type=AnyStage"),
        GPU,
    ),
    "scaling_needs_all_reduce": (
        ("zero_optimization.stage=1", "gradient_predivide_factor=2", "num_gpus=2"),
        "error: gradient_predivide_factor: has no effect on ZeRO's reduce-scatter",
        ("zero_optimization={stage: 1, reduce_scatter: false}", "gradient_predivide_factor=2", "num_gpus=2"),
        CPU,
    ),
    "one_scaling": (
        ("prescale_gradients=true", "gradient_predivide_factor=2", "num_gpus=2"),
        "error: gradient_predivide_factor: does nothing with prescale_gradients",
        ("prescale_gradients=true", "gradient_predivide_factor=1", "num_gpus=2"),
        CPU,
    ),
    "rows_of_a_whole_table": (
        ("sparse_gradients=true",),
        "error: sparse_gradients: the gradient of the head has every row (no-weight-tying: true)",
        ("sparse_gradients=true", "no-weight-tying=true"),
        GPU,
    ),
    "no_overlap_in_a_pipeline": (
        ("zero_optimization={stage: 1, overlap_comm: true}", "pipe-parallel-size=2", "num_gpus=4"),
        "note: zero_optimization.overlap_comm: does nothing: a pipeline reduces the gradients after the backward pass",
        ("zero_optimization={stage: 1, overlap_comm: true}", "pipe-parallel-size=1", "num_gpus=4"),
        CPU,
    ),
    "checkpoints_are_elastic": (
        ("zero_optimization.elastic_checkpoint=false",),
        "note: zero_optimization.elastic_checkpoint: changes nothing",
        ("zero_optimization.elastic_checkpoint=true",),
        CPU,
    ),
    "offload_param_needs_stage_3": (
        ("zero_optimization={stage: 2, offload_param: {device: cpu}}", "optimizer.type=AnyStage"),
        "error: zero_optimization.offload_param: needs stage 3, and the stage is 2",
        ("zero_optimization={stage: 3, offload_param: {device: cpu}}", "optimizer.type=AnyStage"),
        CPU,
    ),
    "offload_optimizer_needs_sharding": (
        ("zero_optimization={stage: 0, offload_optimizer: {device: cpu}}",),
        "error: zero_optimization.offload_optimizer: needs stage 1, 2 or 3, and the stage is 0",
        ("zero_optimization={stage: 1, offload_optimizer: {device: cpu}}",),
        CPU,
    ),
    "partial_offload_fits": (
        ("zero_optimization={stage: 3, offload_optimizer: {ratio: 0.5}}", "optimizer.type=AnyStage"),
        "error: zero_optimization.offload_optimizer.ratio: below 1 needs optimizer.type CPU_Adam, not AnyStage",
        ("zero_optimization={stage: 3, offload_optimizer: {ratio: 0.5}}", "optimizer.type=CPU_Adam"),
        GPU,
    ),
    "forced_optimizer": (
        ("zero_optimization={stage: 1, offload_optimizer: {}}", "zero_force_ds_cpu_optimizer=true"),
        "error: zero_force_ds_cpu_optimizer: allows CPU_Adam only, not Adam",
        (
            "zero_optimization={stage: 1, offload_optimizer: {}}",
            "zero_force_ds_cpu_optimizer=true",
            "optimizer.type=CPU_Adam",
        ),
        CPU,
    ),
    "offload_collects_gradients": (
        ("zero_optimization={stage: 1, contiguous_gradients: false, offload_optimizer: {}}",),
        "error: zero_optimization.contiguous_gradients: cannot be false with offload_optimizer",
        ("zero_optimization={stage: 1, contiguous_gradients: false, offload_optimizer: {device: none}}",),
        CPU,
    ),
    "pinning_needs_gpu": (
        ("zero_optimization={stage: 1, offload_optimizer: {pin_memory: true}}",),
        "error: zero_optimization.offload_optimizer.pin_memory: is for copies to a GPU",
        ("zero_optimization={stage: 1, offload_optimizer: {pin_memory: false}}",),
        CPU,
    ),
    "aio_has_files": (
        ("aio={queue_depth: 4}",),
        "warning: aio: does nothing without an offload to nvme",
        (),
        CPU,
    ),
}
