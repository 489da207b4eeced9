"""Rules about the optimizer and its learning rate."""

from rule_cases.case import CPU, GPU, Case

CASES: dict[str, Case] = {
    "floor_below_peak": (
        ("min-lr=2e-3",),
        "error: min-lr: 0.002 is more than the peak optimizer.params.lr 0.001",
        ("min-lr=1e-3",),
        CPU,
    ),
    "one_schedule_at_resume": (
        ("override-lr-scheduler=true", "use-checkpoint-lr-scheduler=true"),
        "error: override-lr-scheduler: contradicts use-checkpoint-lr-scheduler",
        ("override-lr-scheduler=true",),
        CPU,
    ),
    "sharded_optimizer_tested": (
        ("optimizer.type=Rowwise", "zero_optimization.stage=2"),
        "error: zero_optimization.stage: Rowwise is tested at ZeRO stage 0 or 1 only, not at 2, where it gets flat",
        ("optimizer.type=Rowwise", "zero_optimization.stage=2", "zero-allow-untested-optimizer=true"),
        CPU,
    ),
    "owners_step_what_they_own": (
        ("optimizer.type=Rowwise", "zero_optimization={stage: 1, offload_optimizer: {device: cpu}}"),
        "error: zero_optimization.offload_optimizer: is for slices, and at stage 1 ranks own whole parameters of",
        ("optimizer.type=Rowwise", "zero_optimization={stage: 1, offload_optimizer: {device: none}}"),
        CPU,
    ),
    "optimizer_sees_whole_parameters": (
        ("optimizer.type=Rowwise", "model-parallel-size=2", "num_gpus=2"),
        "error: model-parallel-size: Rowwise needs whole parameters, and 2 tensor-parallel ranks hold parts of them",
        ("optimizer.type=Rowwise", "model-parallel-size=1", "num_gpus=2"),
        CPU,
    ),
    "optimizer_runs_on_device": (
        ("optimizer.type=Rowwise",),
        "error: optimizer.type: Rowwise runs on cpu only, not on cuda",
        ("optimizer.type=Rowwise", "device=cpu"),
        GPU,
    ),
    "optimizer_suits_precision": (
        ("optimizer.type=Rowwise", "bf16.enabled=true"),
        "warning: optimizer.type: Rowwise works poorly in bf16 (fp32 or fp16 suits it)",
        ("optimizer.type=Rowwise", "bf16.enabled=false"),
        CPU,
    ),
    "floor_is_reached": (
        ("min-lr=1e-4", "lr-decay-style=constant"),
        "note: min-lr: does nothing: this schedule never falls to it",
        ("min-lr=1e-4", "lr-decay-style=linear", "warmup=0"),
        CPU,
    ),
    "weight_decay_agrees": (
        ("weight-decay=0.1", "optimizer.params.weight_decay=0.2"),
        "error: optimizer.params.weight_decay: differs from weight-decay 0.1",
        ("weight-decay=0.1", "optimizer.params.weight_decay=0.1"),
        CPU,
    ),
    "one_schedule": (
        ("scheduler={type: WarmupLR, params: {warmup_num_steps: 9}}", "lr-decay-style=linear"),
        "error: lr-decay-style: differs from scheduler: 0.001 at step 0, 0 there",
        (
            "scheduler={type: WarmupLR, params: {warmup_min_lr: 1e-3}}",
            "lr-decay-style=constant",
            "warmup=0",
        ),
        CPU,
    ),
    "scheduler_reaches_the_peak": (
        ("scheduler={type: WarmupLR, params: {warmup_num_steps: 9, warmup_max_lr: 2e-3}}",),
        "warning: optimizer.params.lr: does nothing: scheduler sets its own learning rates, up to 0.002",
        ("scheduler={type: WarmupLR, params: {warmup_num_steps: 9, warmup_max_lr: 1e-3}}",),
        CPU,
    ),
    "schedule_of_the_optimizer": (
        ("optimizer.type=Ramped", "lr-decay-style=cosine"),
        "error: lr-decay-style: Ramped runs with WarmupLR (remove it, or write a `scheduler`)",
        ("optimizer.type=Ramped", "lr-decay-style=linear", "warmup=0.5"),
        CPU,
    ),
    "weight_decay_has_an_effect": (
        ("optimizer={type: Undecayed, params: {lr: 1e-3}}", "weight-decay=0.1"),
        "error: weight-decay: does nothing: Undecayed has no setting weight_decay (remove it, or take another",
        ("optimizer={type: Undecayed, params: {lr: 1e-3}}", "weight-decay=0"),
        CPU,
    ),
}
