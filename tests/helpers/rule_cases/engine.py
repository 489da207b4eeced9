"""Rules about precision, gradients, and what an engine can do."""

from rule_cases.case import CPU, GPU, Case

CASES: dict[str, Case] = {
    "one_precision": (
        ("bf16.enabled=true", "torch_autocast.enabled=true"),
        "error: torch_autocast.enabled: enabled together with bf16 (enable one)",
        ("bf16.enabled=true", "torch_autocast.enabled=false"),
        CPU,
    ),
    "blocks_switched_on": (
        ("fp16.loss_scale=128",),
        "warning: fp16.loss_scale: does nothing without fp16.enabled (fp16: {enabled: true}, or remove it)",
        ("fp16.loss_scale=128", "fp16.enabled=false"),
        CPU,
    ),
    "plain_keeps_fp32_weights": (
        ("engine=plain", "bf16.enabled=true"),
        "error: bf16.enabled: the engine plain does not train weights in bf16 (use torch_autocast: {enabled: true}",
        ("engine=plain", "torch_autocast.enabled=true"),
        CPU,
    ),
    "plain_adds_up_in_fp32": (
        ("engine=plain", "data_types.grad_accum_dtype=bf16"),
        "error: data_types.grad_accum_dtype: the engine plain does not accumulate gradients in bf16 (fp32)",
        ("engine=plain", "data_types.grad_accum_dtype=fp32"),
        CPU,
    ),
    "plain_has_no_pipeline": (
        ("engine=plain", "pipe-parallel-size=2", "num_gpus=2"),
        "error: pipe-parallel-size: the engine plain has no pipeline, and 2 stages are asked for (set it to 1, or use",
        ("engine=plain", "pipe-parallel-size=1", "model-parallel-size=2", "num_gpus=2"),
        CPU,
    ),
    "plain_steps_whole_weights": (
        ("engine=plain", "optimizer.type=Sharded"),
        "error: optimizer.type: Sharded is tested on shards only, and the engine plain has none (choose another",
        ("engine=plain", "optimizer.type=Rowwise"),
        CPU,
    ),
    "engine_has_the_function": (
        ("engine=plain", "checkpoint-activations=true", "deepspeed-activation-checkpointing=true"),
        "error: deepspeed-activation-checkpointing: the engine plain does not have DeepSpeed's function (remove it",
        ("engine=plain", "checkpoint-activations=true"),
        CPU,
    ),
    "fp16_needs_gpu": (
        ("fp16.enabled=true",),
        "error: fp16.enabled: fp16 does not train on a CPU",
        ("fp16.enabled=false",),
        CPU,
    ),
    "hysteresis_needs_zero": (
        ("fp16.enabled=true", "fp16.hysteresis=2"),
        "note: fp16.hysteresis: does nothing: at ZeRO stage 0 DeepSpeed lowers the loss scale at every overflow",
        ("fp16.enabled=true", "fp16.hysteresis=2", "zero_optimization.stage=1"),
        GPU,
    ),
    "steps_that_are_skipped_have_a_bound": (
        ("max-skipped-steps=5",),
        "note: max-skipped-steps: does nothing: the first gradient that is not finite ends the run",
        ("max-skipped-steps=5", "on-nonfinite-loss=skip"),
        CPU,
    ),
    "fp16_loss_needs_fp16": (
        ("fp16-lm-cross-entropy=true",),
        "error: fp16-lm-cross-entropy: needs fp16: {enabled: true}",
        ("fp16-lm-cross-entropy=true", "fp16.enabled=true"),
        GPU,
    ),
    "half_precision_is_sharded": (
        ("num_gpus=2", "pipe-parallel-size=2", "bf16.enabled=true"),
        "error: zero_optimization.stage: 0 computes the norm of a gradient wrongly",
        ("num_gpus=2", "model-parallel-size=2", "bf16.enabled=true"),
        CPU,
    ),
    "pipeline_accumulates_in_its_own_type": (
        (
            "num_gpus=2",
            "pipe-parallel-size=2",
            "bf16.enabled=true",
            "zero_optimization.stage=1",
            "data_types.grad_accum_dtype=fp32",
        ),
        "error: data_types.grad_accum_dtype: fp32 loses gradients of the output layer in a pipeline of a model in bf16",
        ("num_gpus=2", "bf16.enabled=true", "zero_optimization.stage=1", "data_types.grad_accum_dtype=fp32"),
        CPU,
    ),
    "stages_share_a_cross_entropy": (
        ("num_gpus=2", "pipe-parallel-size=2", "pipe-partition-method=time+head", "z-loss=0.1"),
        "error: pipe-partition-method: time+head does not work with causal-lm, which may need more of the output layer",
        ("num_gpus=2", "pipe-parallel-size=2", "pipe-partition-method=time+head"),
        CPU,
    ),
    "amp_without_zero": (
        ("amp.enabled=true", "zero_optimization.stage=1"),
        "error: amp.enabled: does not work at ZeRO stage 1",
        ("amp.enabled=true", "zero_optimization.stage=0"),
        CPU,
    ),
    "gradients_add_up_in_a_known_type": (
        ("bf16.enabled=true", "data_types.grad_accum_dtype=fp32"),
        "error: data_types.grad_accum_dtype: fp32 does not go with a model in bf16 at ZeRO stage 0",
        ("bf16.enabled=true", "data_types.grad_accum_dtype=fp32", "zero_optimization.stage=1"),
        CPU,
    ),
    "extra_args_are_the_engines_own": (
        ("deepspeed_extra_args={gradient_clipping: 99}",),
        "error: deepspeed_extra_args.gradient_clipping: is a key of neox (set gradient_clipping itself",
        ("deepspeed_extra_args={log_level: warning, zero_optimization: {override_module_apply: false}}",),
        CPU,
    ),
}
