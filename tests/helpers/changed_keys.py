"""For each implemented key another value, and what it needs beside it to act.

A new key is found by itself; where its value cannot be guessed, or it needs something beside it, the tables say so.
"""

from collections.abc import Callable, Iterator

from guessed_values import guessed
from neox_reference.keys import Key, own_keys
from plan_answers import CPU, GPU, Sets

from neox_core.config.schema.convert import block_of
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine

REDUCTION = "compression_training.layer_reduction"
BLOCKWISE = "compression_training.sparse_pruning.shared_parameters"
ROWS, HEADS, CHANNELS = (f"compression_training.{each}_pruning" for each in ("row", "head", "channel"))
# value of a key where none follows from its type
VALUES = {
    "hidden_size": "128",
    "num_tokentypes": "1",
    **dict.fromkeys(("bert_load", "ict_load"), "TEACHER"),
    "query_length": "16",
    "max_position_embeddings": "64",
    "norm": "rmsnorm",
    "pos_emb": "rotary",
    "activation": "geglu",
    "split": "1,1",
    "data_impl": "lazy",
    "tokenizer_type": "CharLevelTokenizer",
    "mlp_type": "[[[regular], all]]",
    "model_changes": "[lora]",
    "compression_training.head_pruning.shared_parameters.method": "topk",
    f"{REDUCTION}.teacher": "TEACHER/step-00000001",
    f"{REDUCTION}.keep_number_layer": "4",
    f"{REDUCTION}.teacher_layer": "[0, 0, 1, 1]",
    f"{REDUCTION}.other_module_name": "[embedding]",
    f"{BLOCKWISE}.block_pattern": "2x2",
    f"{BLOCKWISE}.schedule_offset_end": "8",
    f"{ROWS}.different_groups.<group>.related_modules": "[[mlp.down]]",
    f"{HEADS}.different_groups.<group>.related_modules": "[[attention.qkv]]",
    f"{CHANNELS}.different_groups.<group>.related_modules": "[[mlp.down]]",
    "distillation.teacher": "TEACHER/step-00000001",
    "attention_config": "[[[dense], all]]",
    "sparse_attention": "{block: 8}",
    "optimizer.type": "SGD",
    "optimizer.params": "{lr: 0.1}",
    "optimizer.params.betas": "[0.5, 0.6]",
    "lr_decay_style": "cosine",
    "scheduler.type": "WarmupLR",
    "scheduler.params": "{warmup_num_steps: 7}",
    "rampup_batch_size": "[4, 4, 16]",
    "lr_scales": "[['*.bias', 2.0]]",
    "gradient_norm_counts": "[['*.bias', 2.0]]",
    "lr_stages": "[{style: cosine, share: 1.0}]",
    "min_lr": "1e-4",
    "pipe_parallel_size": "2",
    "pipe_partition_method": "uniform",
    "gradient_accumulation_steps": "2",
    "train_batch_size": "8",
    "train_data_weights": "[2.0]",
    "valid_data_weights": "[2.0]",
    "test_data_weights": "[2.0]",
    "kernels": "{layer_norm: triton}",
    "amp.opt_level": "O0",
    "zero_optimization.stage": "2",
    "zero_optimization.offload_param.device": "nvme",
    "zero_optimization.offload_optimizer.device": "nvme",
    "zero_optimization.sub_group_size": "7",
    "comet.others": "{a: 1}",
    "deepspeed_extra_args": "{log_level: info}",
    "launcher": "pdsh",
    "include": "a:0",
    "exclude": "a:0",
    "num_nodes": "1",
    "num_gpus": "2",
    "monitors": "[console]",
    "callbacks": "[spike_guard]",
    "profile": "{first: 2}",
    "profile.first": "2",
    "profile.last": "2",
    "profile.ranks": "[1]",
    "autoresume_command": "[date]",
    "evaluators": "[perplexity_by_dataset]",
    "plugins.require": "[neox-adam]",
    "comms_logger.prof_ops": "[broadcast]",
    "activation_checkpointing.number_checkpoints": "4",
    "sparse_attention.block": "8",
    "sparse_attention.num_sliding_window_blocks": "5",
    "sparse_attention.global_block_end_indices": "[2]",
    "comet.experiment_key": 32 * "a",
    "device": "cpu",
    "hostfile": "HOSTS",
    "autotuning.start_profile_step": "4",
    "elasticity.micro_batch_sizes": "[2, 4]",
    "elasticity.min_time": "5",
    "elasticity.version": "0.1",
    "curriculum_learning.min_difficulty": "16",
    "curriculum_learning.schedule_type": "fixed_root",
    "distributed_backend": "gloo",
    **{f"scheduler.params.{key}": "0.5" for key in ("cycle_min_mom", "cycle_max_mom", "decay_mom_rate")},
    "autotuning.arg_mappings": "{}",
    "use_bias_in_attn_output": "false",
    "rotary_emb_base_in_windows": "500.0",
    "rotary_scaling": "llama3",
    "rotary_scaling_factor": "3.0",
    "rotary_original_positions": "9",
    "rotary_low_freq_factor": "2.0",
    "rotary_high_freq_factor": "5.0",
    "rotary_beta_fast": "30.0",
    "rotary_beta_slow": "2.0",
    **dict.fromkeys(("rotary_attention_factor", "rotary_mscale", "rotary_mscale_all_dim"), "0.7"),
}

RECOMPUTED = ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "num_gpus=2")
RECOMPUTED += ("model-parallel-size=2",)
PATHS = ("train_data_paths=[a, b]", "valid_data_paths=[a]", "test_data_paths=[a]")
TEXT = ("tokenizer_type=GPT2BPETokenizer", "vocab_file=a", "merge_file=b")
IN_FILES = "offload_param: {device: nvme}, offload_optimizer: {device: nvme}"
STAGE_3 = ("optimizer.type=CPU_Adam", "zero_optimization={stage: 3}")
TWO = ("num_gpus=2", "device=cpu")

ONE_BIT = "cuda_aware: false, comm_backend_name: gloo"
ONE_BITS = ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
CYCLE = "cycle_min_lr: 1e-4, cycle_max_lr: 1e-3"
LENGTHS = "total_curriculum_step: 10, difficulty_step: 8"
EASY = f"min_difficulty: 8, max_difficulty: 32, schedule_type: fixed_linear, schedule_config: {{{LENGTHS}}}"
ELASTIC = "max_train_batch_size: 8, micro_batch_sizes: [1, 2]"
STAGES = "lr_stages=[{style: linear, share: 1.0}]"

LONGER = ("rotary_scaling_factor=2", "rotary_original_positions=8")
LLAMA_3, YARN = ("rotary_scaling=llama3", *LONGER), ("rotary_scaling=yarn", *LONGER)

# path of a key, or of a block around it -> what it needs to act; the longest counts
SPECIAL = ("cls", "sep", "mask", "pad")
ENCODER = ("architecture=bert", "objective=masked-lm", *(f"{each}_token_id={at}" for at, each in enumerate(SPECIAL, 1)))
RETRIEVER = ("architecture=retriever", "objective=inverse-cloze", *ENCODER[2:], "query_length=8", "ict_head_size=8")
COMPRESSED = "compression_training.weight_quantization"
INPUTS = "compression_training.activation_quantization"
BESIDE: dict[str, Sets] = {
    f"{COMPRESSED}.shared_parameters.enabled": (
        f"{COMPRESSED}.shared_parameters.quantize_weight_in_forward=true",
        f"{COMPRESSED}.different_groups.g.params.start_bits=8",
    ),
    f"{INPUTS}.shared_parameters.enabled": (f"{INPUTS}.different_groups.g.params.bits=8",),
    **{
        f"compression_training.{each}_pruning.shared_parameters.enabled": (
            f"compression_training.{each}_pruning.different_groups.g.params.dense_ratio=0.5",
        )
        for each in ("sparse", "row", "channel")
    },
    REDUCTION: (f"{REDUCTION}.enabled=true", f"{REDUCTION}.teacher=TEACHER", f"{REDUCTION}.teacher_layer=[3, 2, 1, 0]"),
    f"{REDUCTION}.enabled": (f"{REDUCTION}.teacher=TEACHER", f"{REDUCTION}.teacher_layer=[3, 2, 1, 0]"),
    **{
        f"{BLOCKWISE}.{key}": (
            f"{BLOCKWISE}.enabled=true",
            f"{BLOCKWISE}.method=snip_momentum",
            f"{BLOCKWISE}.schedule_offset_end=6",
        )
        for key in ("schedule_offset_end", "schedule_offset_stride", "block_pattern", "dense_ratio")
    },
    f"{ROWS}.different_groups.<group>.related_modules": (
        f"{ROWS}.shared_parameters.enabled=true",
        f"{ROWS}.different_groups.<group>.modules=[mlp.up]",
    ),
    f"{HEADS}.different_groups.<group>.related_modules": (
        f"{HEADS}.shared_parameters={{enabled: true, num_heads: 4}}",
        f"{HEADS}.different_groups.<group>.modules=[attention.output]",
    ),
    "distillation": ("objective=distillation", "distillation.teacher=TEACHER"),
    **dict.fromkeys((f"{each}_token_id" for each in SPECIAL), ENCODER),
    **dict.fromkeys(("sentence_pairs", "mask_prob", "short_seq_prob"), ENCODER),
    "num_tokentypes": (*ENCODER, "sentence_pairs=none"),
    **dict.fromkeys(
        (
            "ict_head_size",
            "query_length",
            "share_towers",
            "bert_load",
            "ict_load",
            "titles_data_path",
            "block_data_path",
        ),
        RETRIEVER,
    ),
    **dict.fromkeys(("indexer_batch_size", "indexer_log_interval", "faiss_use_gpu", "query_in_block_prob"), RETRIEVER),
    **dict.fromkeys(("use_one_sent_docs", "report_topk_accuracies"), RETRIEVER),
    "compression_training.head_pruning.shared_parameters.enabled": (
        "compression_training.head_pruning.different_groups={g: {modules: [attention.output]}}",
        "compression_training.head_pruning.shared_parameters.num_heads=4",
    ),
    "gpt_j_tied": ("gpt_j_residual=true",),
    "use_bias_in_head": ("no_weight_tying=true",),
    "rotary_emb_base_in_windows": ("sliding_window_width=4",),
    **dict.fromkeys(("rotary_scaling", "rotary_scaling_factor"), YARN),
    **dict.fromkeys(("rotary_low_freq_factor", "rotary_high_freq_factor"), LLAMA_3),
    **dict.fromkeys((f"rotary_{key}" for key in ("beta_fast", "beta_slow", "truncate", "attention_factor")), YARN),
    "rotary_original_positions": YARN,
    **dict.fromkeys(
        ("rotary_mscale", "rotary_mscale_all_dim"), (*YARN, "rotary_mscale=0.5", "rotary_mscale_all_dim=0.6")
    ),
    "param_sharing_style": ("num_unique_layers=2",),
    "tokenizer_type": ("padded_vocab_size=512",),
    "reset_position_ids": TEXT,
    "reset_attention_mask": TEXT,
    "eod_mask_loss": TEXT,
    "sample_prompt": TEXT,
    "make_vocab_size_divisible_by": (*TEXT, "padded_vocab_size=null"),
    "sparse_attention": ("sparsity=all",),
    "checkpoint_num_layers": RECOMPUTED,
    "deepspeed_activation_checkpointing": ("checkpoint_activations=true",),
    "distribute_checkpointed_activations": ("checkpoint_activations=true", *RECOMPUTED[2:]),
    **dict.fromkeys(("partition_activations", "synchronize_each_layer"), RECOMPUTED),
    "checkpoint_in_cpu": (*RECOMPUTED, "device=cuda"),
    "profile_backward": RECOMPUTED,
    "contiguous_checkpointing": (*RECOMPUTED, "partition_activations=true"),
    "activation_checkpointing": (*RECOMPUTED, "partition_activations=true", "device=cuda"),
    "activation_checkpointing.partition_activations": RECOMPUTED,
    "pipe_parallel_size": TWO,
    "model_parallel_size": TWO,
    "pipe_partition_method": (*TWO, "pipe_parallel_size=2"),
    "sequence_parallel": (*TWO, "model_parallel_size=2"),
    **dict.fromkeys(("train_data_paths", "valid_data_paths", "test_data_paths"), PATHS),
    "train_data_weights": ("train_data_paths=[a]", "valid_data_paths=[a]"),
    "valid_data_weights": ("train_data_paths=[a]", "valid_data_paths=[a]"),
    "test_data_weights": ("train_data_paths=[a]", "valid_data_paths=[a]", "test_data_paths=[b]"),
    "weight_by_num_documents": PATHS,
    "weighted_sampler_alpha": (*PATHS, "weight_by_num_documents=true"),
    "train_batch_size": TWO[:0],
    "scheduler.type": ("scheduler={type: WarmupDecayLR}",),
    "scheduler.params": ("scheduler={type: WarmupLR}",),
    "fp16": ("fp16.enabled=true", "zero_optimization.stage=1"),
    "fp16.enabled": ("device=cuda",),
    "amp.opt_level": ("amp.enabled=true",),
    "torch_autocast.dtype": ("torch_autocast.enabled=true",),
    "data_types": ("bf16.enabled=true", "zero_optimization.stage=1"),
    "fp16_lm_cross_entropy": ("fp16.enabled=true",),
    "attention_softmax_in_fp32": ("bf16.enabled=true",),
    "rmsnorm_fusion": ("norm=rmsnorm",),
    "rope_fusion": ("pos_emb=rotary",),
    "kernels": (),
    "zero_optimization": ("zero_optimization.stage=1", *TWO),
    "zero_optimization.ignore_unused_parameters": ("zero_optimization.stage=2",),
    "zero_optimization.load_from_fp32_weights": ("bf16.enabled=true",),
    "zero_optimization.zero_hpz_partition_size": (*STAGE_3, *TWO),
    "zero_optimization.sub_group_size": STAGE_3,
    "zero_optimization.zero_quantized_weights": (*STAGE_3, "device=cuda"),
    "zero_optimization.zero_quantized_gradients": (*STAGE_3, "device=cuda"),
    **{
        f"zero_optimization.stage3_{key}": (*STAGE_3, *TWO)
        for key in ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold")
    },
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": STAGE_3,
    "zero_optimization.offload_param": (*STAGE_3[:1], f"zero_optimization={{stage: 3, {IN_FILES}}}", "device=cuda"),
    "zero_optimization.offload_optimizer": (*STAGE_3[:1], f"zero_optimization={{stage: 3, {IN_FILES}}}", "device=cuda"),
    "zero_optimization.offload_param.device": STAGE_3,
    "zero_optimization.offload_optimizer.device": STAGE_3,
    "aio": (*STAGE_3[:1], f"zero_optimization={{stage: 3, {IN_FILES}}}"),
    "communication_data_type": (*TWO, "zero_optimization={stage: 1, reduce_scatter: false}"),
    "prescale_gradients": (*TWO, "zero_optimization={stage: 1, reduce_scatter: false}"),
    "gradient_predivide_factor": (*TWO, "zero_optimization={stage: 1, reduce_scatter: false}"),
    "sparse_gradients": (*TWO, "no_weight_tying=true"),
    **dict.fromkeys(("save", "extra_save_iters"), ("save=out", "save_interval=5")),
    **dict.fromkeys(("save_interval", "keep_last_n_checkpoints"), ("save=out", "save_interval=5")),
    **dict.fromkeys(("finetune", "no_load_optim", "no_load_rng"), ("load=in",)),
    **dict.fromkeys(("callbacks", "spike_guard.enabled", "max_restarts"), ("save=out", "save_interval=5")),
    **{
        f"lm_eval.{key}": ("lm_eval.tasks=[a]", *TEXT)
        for key in ("tasks", "task_folder", "interval", "num_fewshot", "limit", "batch_size")
    },
    **{f"samples.{key}": ("samples.prompts=[a]", *TEXT) for key in ("prompts", "interval")},
    "adlr_autoresume": ("save=out", "autoresume_command=[echo]"),
    "autoresume_command": ("adlr_autoresume=true", "save=out"),
    "elasticity.enabled": (f"elasticity={{{ELASTIC}, ignore_non_elastic_batch_info: true}}",),
    "evaluators": ("eval_iters=1", "eval_interval=1"),
    "hostfile": ("launcher=pdsh",),
    **dict.fromkeys(("include", "exclude", "num_nodes"), ("hostfile=HOSTS", "launcher=pdsh")),
    "device": ("device=cuda",),
    "distributed_backend": ("device=cuda",),
    "detect_nvlink_pairs": ("device=cuda", "num_gpus=2", "model_parallel_size=2"),
    **dict.fromkeys(("flops_profiler.enabled", "comms_logger.enabled"), ()),
    "comms_logger": ("comms_logger.enabled=true",),
    "comms_logger.prof_ops": ("comms_logger={enabled: true, prof_all: false, prof_ops: [all_reduce]}",),
    "flops_profiler": ("flops_profiler.enabled=true",),
    "autotuning.tuner_type": ("autotuning.fast=false",),
    "curriculum_learning": (f"curriculum_learning={{enabled: true, curriculum_type: seqlen, {EASY}}}",),
    "curriculum_learning.enabled": (f"curriculum_learning={{curriculum_type: seqlen, {EASY}}}",),
    "moe_normalize_expert_weights": ("moe_top_k=2",),
    "moe_expert_parallel_size": ("engine=plain", *TWO),
    "rampup_batch_size": ("gradient_accumulation_steps=2",),
    "optimizer.params.nesterov": ("optimizer.params.momentum=0.5",),
    "sparse_attention.num_different_global_patterns": ("sparse_attention.different_layout_per_head=true",),
}
CALLBACKS: dict[str, Sets] = {
    "elasticity": ("num_gpus=2", "train_micro_batch_size_per_gpu=null", f"elasticity={{enabled: true, {ELASTIC}}}"),
    "autoresume": ("adlr_autoresume=true", "save=out", "autoresume_command=[echo]"),
    "profile": ("profile.first=1", "num_gpus=2"),
}
# kind of component -> how one is chosen
COMPONENT: dict[str, Callable[[str], Sets]] = {
    "optimizer": lambda name: (
        f"optimizer={{type: {name}, params: {{lr: 1e-3{', ' + ONE_BIT if name in ONE_BITS else ''}}}}}",
        *(("optimizer.params.freeze_step=20",) if name in ("OneBitAdam", "OneBitLamb") else ()),
    ),
    "scheduler": lambda name: (f"scheduler={{type: {name}, params: {{{CYCLE if 'Cycle' in name else ''}}}}}",),
    "lr schedule": lambda name: (f"lr_decay_style={name}", *((STAGES,) if name == "staged" else ())),
    "norm": lambda name: (f"norm={name}",),
    "feed forward": lambda name: (f"mlp_type={name}", "moe_num_experts=4"),
    "position": lambda name: (f"pos_emb={name}",),
    "sparse layout": lambda name: ("sparsity=all", f"sparse_attention={{mode: {name}, block: 4}}"),
    "launcher": lambda name: (f"launcher={name}",),
    "data backend": lambda name: (f"data_impl={name}",),
    "tokenizer": lambda name: (
        f"tokenizer_type={name}",
        "vocab_file=a",
        *(("merge_file=b",) if name[:4] == "GPT2" else ()),
    ),
    "monitor": lambda name: (f"{name}.enabled=true",),
    "callback": lambda name: CALLBACKS.get(name, (f"{name}.enabled=true", "save=out", "save_interval=5")),
    "evaluator": lambda name: (f"evaluators=[{name}]", "eval_iters=1", "eval_interval=1"),
}
# keys of which no run takes another value than the default, or not without another key
REFUSED = {
    "faiss_use_gpu",  # of a FAISS without one
    "comet.api_key",
    "eigenvalue.layer_name",
    f"{REDUCTION}.module_name_prefix",
    "compression_training.channel_pruning.shared_parameters.enabled",
    "compression_training.head_pruning.shared_parameters.method",
    "sparse_attention.attention",
    "sparse_attention.horizontal_global_attention",
    "autotuning.enabled",
    "autotuning.mp_size",
    "comms_logger.prof_all",
    "elasticity.model_parallel_size",
    "curriculum_learning.schedule_type",
    "curriculum_learning.max_difficulty",
    *(f"curriculum_learning.schedule_config.{key}" for key in ("root_degree", "difficulty", "max_step")),
}
# keys whose value above says what holds in a small config anyway, and is refused where it does not
HOLDS = {
    "architecture",
    "mlp_type",
    "engine",
    "objective",
    "device",
    "distributed_backend",
    "num_nodes",
    "plugins.require",
    "optimizer.params.comm_backend_name",
    "activation_checkpointing.number_checkpoints",
    "curriculum_learning.curriculum_type",
    "torch_autocast.dtype",  # bfloat16 and bf16
}


def value_of(key: Key) -> str:
    """Another value than the default, as a config writes it."""
    return VALUES[key.path] if key.path in VALUES else guessed(key)


def beside_of(key: Key) -> Sets:
    """What a key needs to act: for a setting, its component."""
    kind, _, name = key.part.rpartition(" ")
    if kind in COMPONENT:
        alone = key.path.endswith(".enabled") or key.path in ("adlr_autoresume", "max_restarts")
        first = () if alone else COMPONENT[kind](name)
        return (*first, *BESIDE.get(key.path, ()))
    parts = key.path.split(".")
    around = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((BESIDE[path] for path in around if path in BESIDE), ())


def keys() -> Iterator[Key]:
    """All implemented keys but blocks, whose keys are others."""
    listed = (key for key in own_keys(load_plugins().registry) if key.state == "implemented" and key.field is not None)
    return (key for key in listed if key.field is not None and block_of(key.field.type) is None)


def changes(key: Key) -> tuple[str, str, Sets, Machine]:
    """(path, another value, what it needs beside it, a machine where it acts)."""
    beside = beside_of(key)
    gpu = "device=cuda" in beside or "fp16.enabled=true" in beside
    return key.path.replace("<metric>", "seqlen"), value_of(key), beside, GPU if gpu else CPU
