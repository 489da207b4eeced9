"""Which tests see the keys that a short run cannot show: see tests/e2e/test_short_runs_of_keys.py."""

from changed_keys import HEADS, REDUCTION, ROWS
from neox_reference.keys import Key
from short_run_keys import GROUP, LEARNING, SAMPLING, SEQLEN, named

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "tests/unit/plan/test_cluster.py": (
        *("hostfile", "include", "exclude", "num_nodes", "num_gpus", "device", "distributed_backend", "local_rank"),
        *("master_addr", "master_port"),
    ),
    "plugins/neox-launchers/tests/test_hosts.py": ("launcher",),
    "tests/unit/plan/test_problems.py": ("detect_nvlink_pairs",),
    "tests/e2e/test_run_ends.py": ("stall_timeout", "on_nonfinite_loss"),
    "tests/e2e/test_layouts.py": (
        *("pipe_parallel_size", "model_parallel_size", "sequence_parallel", "distribute_checkpointed_activations"),
        *("partition_activations", "contiguous_checkpointing"),
    ),
    "plugins/neox-deepspeed/tests/test_partition.py": ("pipe_partition_method",),
    "tests/unit/data/test_data.py": ("num_workers",),
    "tests/unit/plan/test_resolve.py": ("data_impl",),
    "plugins/neox-tokenizers/tests/test_tokenizers.py": ("tokenizer_type",),
    "tests/unit/checkpoint/test_checkpoint.py": ("override_lr_scheduler", "use_checkpoint_lr_scheduler"),
    "plugins/neox-plain/tests/test_peak.py": ("peak_tflops",),
    "plugins/neox-gpt/tests/test_compile.py": ("compile",),
    "plugins/neox-gpt/tests/test_gpt.py": ("attention_softmax_in_fp32", "apply_query_key_layer_scaling"),
    "plugins/neox-kernels/tests/test_choose.py": ("kernels",),
    "plugins/neox-gpt/tests/test_recompute.py": (
        *("checkpoint_activations", "checkpoint_num_layers", "deepspeed_activation_checkpointing"),
        *("synchronize_each_layer", "profile_backward", "activation_checkpointing"),
    ),
    "tests/helpers/rule_cases/recomputation.py": ("checkpoint_in_cpu",),
    "tests/unit/plan/test_attention.py": ("attention_config",),
    "plugins/neox-retrieval/tests/test_index.py": (
        *("block_data_path", "indexer_batch_size", "indexer_log_interval", "bert_load", "ict_load"),
    ),
    "plugins/neox-retrieval/tests/test_blocks.py": ("titles_data_path", "use_one_sent_docs", "query_in_block_prob"),
    "plugins/neox-compression/tests/test_teacher.py": (
        *(f"{REDUCTION}.{each}" for each in ("enabled", "teacher", "keep_number_layer", "teacher_layer")),
        *(
            f"{REDUCTION}.other_module_name",
            f"{REDUCTION}.module_name_prefix",
            "distillation.teacher",
            "distillation.weight",
            "distillation.temperature",
        ),
    ),
    "plugins/neox-bert/tests/test_sparse.py": ("architecture bert: sparsity",),
    "plugins/neox-compression/tests/test_training.py": ("compression_training.channel_pruning",),
    "plugins/neox-compression/tests/test_shrinking.py": (
        *(f"{each}.{GROUP}.related_modules" for each in (ROWS, HEADS)),
    ),
    "plugins/neox-autotuning/tests/test_space.py": (
        *("autotuning.fast", "autotuning.max_train_batch_size", "autotuning.num_tuning_micro_batch_sizes"),
        *(f"autotuning.tuner_{each}" for each in ("type", "early_stopping", "num_trials")),
        "autotuning.arg_mappings",
    ),
    "plugins/neox-autotuning/tests/test_trial.py": (
        *(f"autotuning.{each}" for each in ("metric", "start_profile_step", "end_profile_step", "overwrite")),
    ),
    "plugins/neox-autotuning/tests/test_tune.py": ("autotuning.results_dir", "autotuning.exps_dir"),
    "plugins/neox-onebit/tests/drive_ranks.py": (
        *(f"optimizer ZeroOneAdam: optimizer.params.{each}" for each in ("var_freeze_step", "local_step_clipper")),
    ),
    "plugins/neox-sparse-attention/tests/test_layouts.py": ("sparse layout dense: sparse_attention.block",),
    "plugins/neox-data-indexed/tests/test_mmap.py": ("mmap_warmup",),
    "plugins/neox-data-hf/tests/test_arrow.py": ("hf_column",),
    "plugins/neox-curriculum/tests/test_choice.py": (
        *(f"{SAMPLING}.num_epochs", f"{SAMPLING}.num_workers", f"{SAMPLING}.curriculum_learning.data_cluster_path"),
        *(f"{SEQLEN}.{each}" for each in ("index_to_sample_path", "index_to_metric_path", "difficulty_type")),
        *(f"{SEQLEN}.clustering_type", "data_efficiency.seed"),
    ),
    "plugins/neox-curriculum/tests/test_schedule.py": (f"{LEARNING}.schedule_type", f"{SEQLEN}.schedule_type"),
    "tests/e2e/test_autoresume.py": ("callback autoresume",),
    "plugins/neox-elasticity/tests/test_solve.py": ("elasticity",),
    "plugins/neox-elasticity/tests/test_membership.py": ("max_restarts",),
    "plugins/neox-profile/tests/test_profile.py": ("profile",),
    "plugins/neox-spike-guard/tests/test_guard.py": (
        *(f"spike_guard.{each}" for each in ("window", "deviations", "margin", "before", "after", "most", "least")),
    ),
    "plugins/neox-lm-eval/tests/test_lm_eval.py": ("lm_eval",),
    "tests/e2e/test_spread_experts.py": ("moe_expert_parallel_size",),
    "plugins/neox-launchers/tests/test_commands.py": (
        *("launcher_program", "launcher_args", "comment", "account", "partition"),
    ),
    "plugins/neox-launchers/tests/test_forwarding.py": ("launcher_env",),
    "plugins/neox-launchers/tests/test_tree.py": ("pdsh_tree_from",),
    "plugins/neox-launchers/tests/test_deadlines.py": ("meet_timeout", "host_timeout", "end_timeout"),
    "plugins/neox-launchers/tests/test_local.py": ("log_dir",),
    "plugins/neox-monitors/tests/test_blocks.py": ("comet", "wandb"),
    "tests/unit/checkpoint/test_background.py": ("checkpoint.background",),
    "tests/e2e/test_loss_scale.py": ("fp16",),
    "tests/e2e/test_engine_effects.py": (
        *(f"zero_optimization.{each}" for each in ("reduce_bucket_size", "overlap_comm", "reduce_scatter")),
        *(f"zero_optimization.{each}" for each in ("allgather_partitions", "sub_group_size", "stage")),
        *(f"zero_optimization.stage3_{each}" for each in ("max_live_parameters", "max_reuse_distance")),
        *(f"zero_optimization.stage3_{each}" for each in ("prefetch_bucket_size", "param_persistence_threshold")),
        *("communication_data_type", "prescale_gradients", "gradient_predivide_factor", "sparse_gradients"),
        "data_types.grad_accum_dtype",
    ),
    "plugins/neox-deepspeed/tests/test_memory.py": ("zero_optimization.contiguous_gradients",),
    "tests/e2e/test_checkpoint_resume.py": (
        *(f"zero_optimization.{each}" for each in ("round_robin_gradients", "zero_hpz_partition_size")),
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
    "plugins/neox-deepspeed/tests/test_engine_config.py": (
        *(f"zero_optimization.{each}" for each in ("load_from_fp32_weights", "ignore_unused_parameters")),
        *(f"zero_optimization.{each}" for each in ("offload_param", "offload_optimizer")),
        *(f"zero_optimization.zero_quantized_{each}" for each in ("weights", "gradients")),
    ),
    "plugins/neox-deepspeed/tests/test_files.py": ("aio",),
    "plugins/neox-deepspeed/tests/test_measure.py": (
        *("steps_per_print", "wall_clock_breakdown", "dump_state", "flops_profiler", "comms_logger"),
    ),
    "tests/unit/plan/test_effects.py": ("fp16_lm_cross_entropy",),
}
"""File of tests -> keys that need several ranks, another engine, a GPU, or time, or that change no number by design."""
WORDS = {
    "pipe_parallel_size": '"pipe"',
    "model_parallel_size": '"tensor"',
    "tokenizer_type": "HFTokenizer",
    **dict.fromkeys(("override_lr_scheduler", "use_checkpoint_lr_scheduler"), "schedule_from"),
    "checkpoint_activations": "recompute",
    "checkpoint_num_layers": "layers",
    "deepspeed_activation_checkpointing": "deepspeed=True",
    "partition_activations": "partition",
    "contiguous_checkpointing": "contiguous",
    "synchronize_each_layer": "synchronize=True",
    "profile_backward": "profile=True",
    "activation_checkpointing": "num_checkpoints",
    "distribute_checkpointed_activations": "distribute",
    "apply_query_key_layer_scaling": "query_key_layer_scaling",
}
"""The word of a plan by which its tests know a key, where that is another one."""


def listed(key: Key) -> bool:
    """Whether a test elsewhere sees it."""
    names = {name for names_of in ELSEWHERE.values() for name in names_of}
    parts = key.path.split(".")
    blocks = (".".join(parts[:count]) for count in range(1, len(parts)))
    return not names.isdisjoint((*named(key), key.part, *blocks))
