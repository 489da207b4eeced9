"""The rules on batch, model, data, launch, optimizer, precision, ZeRO, checkpoints and what observes a run."""

from rule_index.said import GPU, Said


def one_bit(name: str, more: str = "freeze_step: 5") -> tuple[str, ...]:
    """One of the 1-bit family on a CPU."""
    return (f"optimizer={{type: {name}, params: {{cuda_aware: false, comm_backend_name: gloo, {more}}}}}",)


ZERO = "zero_optimization"
INDEX: dict[int, tuple[str | Said, ...]] = {
    # batch and parallelism
    1: ("ranks_make_whole_copies",),
    2: ("batch_fits",),
    3: (
        Said(("train_micro_batch_size_per_gpu=null",), "is required (or train_batch_size)"),
        Said(("train_batch_size=0",), "train_batch_size: must be greater than 0", ("train_batch_size=4",)),
        Said(("gradient_accumulation_steps=0",), "must be greater than 0", ("gradient_accumulation_steps=1",)),
    ),
    4: (Said(("batch-size=3",), "batch-size: differs from train_micro_batch_size_per_gpu", ("batch-size=4",)),),
    5: (
        "ranks_make_whole_copies",
        Said(("pipe-parallel-size=-1",), "must be 0 or more", ("pipe-parallel-size=0",)),
        Said(("model-parallel-size=0",), "must be greater than 0", ("model-parallel-size=1",)),
    ),
    6: ("pipeline_keeps_gradients",),
    7: ("heads_divide_hidden", "widths_divide", "padding_agrees"),
    8: ("unique_layers_divide_layers", "sharing_has_layers"),
    9: (
        "partition_has_pipeline",
        Said(
            ("pipe-partition-method=best", "num_gpus=2", "pipe-parallel-size=2"),
            "pipe-partition-method: must be parameters, uniform, time, time+head or type:<regex>",
            ("pipe-partition-method=type:transformer", "num_gpus=2", "pipe-parallel-size=2"),
        ),
    ),
    10: ("nvlink_pairs_share_layers",),
    # model and data
    11: tuple(
        Said((f"{key}=null",), f"{key}: is required")
        for key in ("num-layers", "hidden-size", "num-attention-heads", "max-position-embeddings")
    ),
    12: ("sequence_fits_positions",),
    13: (
        Said(("rms-norm-epsilon=1e-6",), "belongs to norm rmsnorm", ("rms-norm-epsilon=1e-6", "norm=rmsnorm")),
        Said(("layernorm-epsilon=1e-6", "norm=rmsnorm"), "belongs to norm layernorm", ("layernorm-epsilon=1e-6",)),
        Said(("scalenorm-epsilon=1e-6",), "belongs to norm scalenorm", ("scalenorm-epsilon=1e-6", "norm=scalenorm")),
        Said(("rpe-num-buckets=8",), "belongs to position rpe", ("rpe-num-buckets=8", "pos-emb=rpe")),
    ),
    14: (
        "split_is_shares",
        Said(("tokenizer-type=GPT2BPETokenizer",), "vocab-file: is required"),
        Said(
            ("tokenizer-type=GPT2BPETokenizer", "vocab-file=a"),
            "merge-file: is required",
            ("tokenizer-type=GPT2BPETokenizer", f"vocab-file={__file__}", f"merge-file={__file__}"),
        ),
    ),
    15: (Said(("seed=0",), "seed: must be from 1 to 4294967295", ("seed=1",)),),
    16: (Said(("onnx-safe=true", "bias-gelu-fusion=true"), "bias-gelu-fusion: ", ("onnx-safe=true",)),),
    # launch
    17: ("one_host_filter", "filter_or_count"),
    18: (
        Said(("include=worker-9",), "names host 'worker-9', which is not one of localhost", ("include=localhost",)),
        Said(("exclude=localhost:4",), "names slot '4' of localhost", ("exclude=localhost:3",), GPU),
        Said(("num_nodes=2",), "must be -1, or from 1 to 1, the number of hosts; not 2", ("num_nodes=1",)),
        Said(("num_gpus=5",), "this machine has 4 devices, not 5", ("num_gpus=4",), GPU),
        Said(("launcher=rsh",), "no launcher 'rsh'", ("launcher=MVAPICH",)),
    ),
    # optimizer and learning rate
    19: ("floor_below_peak",),
    20: (
        "schedule_of_the_optimizer",
        Said(
            ("optimizer={type: OneBitAdam, params: {freeze_step: 5}}",),
            "OneBitAdam needs cuda_aware, comm_backend_name",
            one_bit("OneBitAdam"),
        ),
        Said(
            (*one_bit("ZeroOneAdam", ""), "zero_optimization.stage=1", "zero_allow_untested_optimizer=true"),
            "ZeroOneAdam runs at stage 0 only, not at 1",
            one_bit("ZeroOneAdam", ""),
        ),
        Said(
            ("optimizer={type: OneBitLamb, params: {freeze_step: 10}}",),
            "comm_backend_name: is nccl, and the ranks talk over gloo",
            one_bit("OneBitLamb", "freeze_step: 10"),
        ),
    ),
    21: ("one_schedule_at_resume",),
    22: (
        Said(("warmup=1.01",), "warmup: must be from 0 to 1", ("warmup=1",)),
        Said(
            ("scheduler={type: WarmupLR, params: {warmup_num_steps: 0, warmup_max_lr: 1e-3}}", "min-lr=null"),
            "warmup_num_steps: must be",
            ("scheduler={type: WarmupLR, params: {warmup_num_steps: 1, warmup_max_lr: 1e-3}}",),
        ),
    ),
    23: ("sharded_optimizer_tested",),
    24: ("optimizer_suits_precision",),
    25: ("weight_decay_agrees",),
    26: (
        Said(
            one_bit("OneBitLamb", "coeff_beta: 0.9, freeze_step: 9"),
            "a running mean with 0.9 takes 10 steps, and freeze_step is 9",
            one_bit("OneBitLamb", "coeff_beta: 0.9, freeze_step: 10"),
        ),
        Said(
            one_bit("OneBitLamb", "factor_min: 3, factor_max: 2"),
            "factor_min: 3.0 is more than factor_max 2.0",
            one_bit("OneBitLamb", "factor_min: 2, factor_max: 2"),
        ),
        Said(
            one_bit("OneBitLamb", "min_coeff: 3, max_coeff: 2"),
            "min_coeff: 3.0 is more than max_coeff 2.0",
            one_bit("OneBitLamb", "min_coeff: 2, max_coeff: 2"),
        ),
        Said(
            ("optimizer={type: Lamb, params: {min_coeff: 2, max_coeff: 1}}",),
            "min_coeff 2.0 is more than max_coeff 1.0",
            ("optimizer={type: Lamb, params: {min_coeff: 1, max_coeff: 1}}",),
        ),
    ),
    27: (Said(("cpu_torch_adam=true", "cpu-optimizer=false", "optimizer=null"), "differs from cpu_torch_adam"),),
    # precision
    28: ("one_precision", "amp_without_zero"),
    29: ("fp16_loss_needs_fp16",),
    30: ("layer_scaling_is_in_fp32",),
    31: (
        Said(("fp16.loss_scale=-1",), "fp16.loss_scale: must be 0 or more", ("fp16.loss_scale=0",)),
        Said(("fp16.loss_scale=.inf",), "must be a finite number", ("fp16.loss_scale=1e5",)),
        Said(("fp16.loss_scale_window=0",), "must be greater than 0", ("fp16.loss_scale_window=1",)),
        Said(("fp16.min_loss_scale=0",), "must be greater than 0", ("fp16.min_loss_scale=1",)),
    ),
    32: (
        "gradients_add_up_in_a_known_type",
        Said(
            ("data_types.grad_accum_dtype=fp8",),
            "grad_accum_dtype: must be one of",
            ("data_types.grad_accum_dtype=fp32",),
        ),
    ),
    # ZeRO and offload
    33: ("offload_param_needs_stage_3",),
    34: ("offload_optimizer_needs_sharding",),
    35: (
        "partial_offload_fits",
        Said((f"{ZERO}={{stage: 3, offload_optimizer: {{ratio: 1.1}}}}",), "ratio: must be from 0"),
    ),
    36: ("one_offload",),
    37: ("buffers_hold_a_parameter",),
    38: ("keys_of_the_stage", "quantizer_there"),
    39: ("keys_of_the_stage",),
    40: ("scaling_needs_all_reduce",),
    41: ("no_overlap_in_a_pipeline",),
    42: (
        Said((f"{ZERO}={{stage: 1, allgather_bucket_size: -2}}",), "allgather_bucket_size: must be"),
        Said(
            (f"{ZERO}={{stage: 1, reduce_bucket_size: 0}}",),
            "reduce_bucket_size: must be greater than 0",
            (f"{ZERO}={{stage: 1, reduce_bucket_size: 1}}",),
        ),
    ),
    # activation checkpointing and checkpoints
    43: ("recomputing_is_on", "one_function_parts_inputs"),
    44: ("contiguous_buffer_has_a_size", "segment_fits_model"),
    45: ("options_are_deepspeeds", "checkpointing_spellings_agree"),
    46: (
        "save_has_interval",
        Said(("keep-last-n-checkpoints=0", "save=a", "save-interval=1"), "must be greater than 0"),
    ),
    47: ("finetune_has_source",),
    48: (
        Said(
            ("checkpoint.tag_validation=Never",),
            "tag_validation: must be one of",
            ("checkpoint.tag_validation=Fail",),
        ),
    ),
    49: (
        # of a retriever: plugins/neox-retrieval/tests; a decoder has none of these keys
        Said(("ict-load=a",), "ict-load: belongs to architecture retriever"),
        Said(("query-in-block-prob=0.1",), "query-in-block-prob: belongs to objective inverse-cloze"),
    ),
    # monitors, profiling, autotuning
    67: (
        "components_have_libraries",
        Said(("comet.experiment_key=short",), "experiment_key: must"),
        Said(("comet.api_key=secret",), "api_key: is a secret"),
    ),
    68: ("profile_needs_timers",),
    69: (
        Said(
            ("autotuning={start_profile_step: 5, end_profile_step: 4}",),
            "end_profile_step: 4 comes before start_profile_step 5",
            ("autotuning={start_profile_step: 5, end_profile_step: 5}",),
        ),
        Said(
            ("autotuning={tuner_type: random}",),
            "tuner_type: is not read with fast: true",
            ("autotuning={tuner_type: random, fast: false}",),
        ),
    ),
    70: ("timed_collectives_chosen_once",),
    # all keys
    71: (
        Said(("num_layers=3", "num-layers=4"), "is given twice", ("num_layers=4", "num-layers=4")),
    ),
    72: (Said(("rms-norm=true", "norm=layernorm"), "rms-norm: differs from norm", ("rms-norm=true", "norm=rmsnorm")),),
    73: (
        Said(("nun-layers=2",), "nun-layers: unknown key (did you mean num-layers?)"),
        Said((f"{ZERO}.reduce_bucket_sise=5",), "reduce_bucket_sise: unknown key"),
        Said(("optimizer.params.learning_rate=1",), "learning_rate: unknown key"),
    ),
    74: (
        Said(("train-iters=5.5e0",), "train-iters: must be", ("train-iters=5e8", "min-lr=1e-5")),
    ),
}  # fmt: skip
