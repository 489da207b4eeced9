"""What stands beside each key in the runs of tests/e2e/test_short_runs_of_keys.py.

A name in the tables is the path of a key, or, for one of many components, its part and its path.
"""

from changed_keys import (
    BLOCKWISE,
    ENCODER,
    HEADS,
    INPUTS,
    RETRIEVER,
    ROWS,
    YARN,
    beside_of,
    value_of,
)
from changed_keys import COMPRESSED as WEIGHTS
from neox_reference.keys import Key
from plan_answers import Sets

SPLITS = ("train", "valid", "test")
DATA = ("data_impl=text", "data_path={folder}/text.jsonl", "split=100,0,0", "eval_iters=0")
TEXT = (*DATA, "append_eod=true", "tokenizer_type=HFTokenizer", "vocab_file={folder}/tokenizer.json", "eod_token=b")
BYTES = (*DATA, "append_eod=true", "padded_vocab_size=512")
BLEND = tuple(f"{each}_data_paths=[{{folder}}/tokens, {{folder}}/more]" for each in SPLITS)
WEIGHTED = (*BLEND, *(f"{each}_data_weights=[1.0, 1.0]" for each in SPLITS), "eval_iters=4")
RESUMED = ("load={folder}/run0", "train_iters=6", "override_lr_scheduler=true")
LONG = ("seq_length=64", "max_position_embeddings=64")
RETRIEVED = (*RETRIEVER, "use_one_sent_docs=true")
DEEPSPEED = ("CPU_Adam", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "1Cycle", "OneCycle", "deepspeed")
"""Components that need DeepSpeed's engine."""
SPARSE = "compression_training.sparse_pruning"
SHARED, GROUP = "shared_parameters", "different_groups.<group>"
LEARNING = "curriculum_learning"
GROWING = "schedule_type: fixed_linear, schedule_config: {total_curriculum_step: 4, difficulty_step: 4}"
ROOT = "schedule_type: fixed_root, schedule_config: {total_curriculum_step: 4, difficulty_step: 4, root_degree: 2}"
STAIRS = "schedule_type: fixed_discrete, schedule_config: {difficulty: [4, 16], max_step: [2]}"
KIND = "difficulty_type: value, clustering_type: single_cluster"
LENGTHS = "min_difficulty: 4, max_difficulty: 16"
SKIPPING = "data_efficiency.data_routing.random_ltd"
SAMPLING = "data_efficiency.data_sampling"
SEQLEN = f"{SAMPLING}.curriculum_learning.curriculum_metrics.<metric>"


def lengths(schedule: str) -> Sets:
    return (f"{LEARNING}={{enabled: true, curriculum_type: seqlen, {LENGTHS}, {schedule}}}",)


def sampled(schedule: str) -> Sets:
    metrics = f"curriculum_metrics: {{seqlen: {{{KIND}, {LENGTHS}, {schedule}}}}}"
    learning = f"curriculum_learning: {{enabled: true, {metrics}}}"
    return (f"data_efficiency={{enabled: true, data_sampling: {{enabled: true, {learning}}}}}",)


def technique(block: str, shared: str, params: str, *more: str) -> Sets:
    """A technique of compression that acts."""
    return (
        f"{block}.{SHARED}={{enabled: true, {shared}}}",
        f"{block}.different_groups={{g: {{params: {{{params}}}, modules: [mlp.up]}}}}",
        *more,
    )


SLOWER = f"{{min_value: 8, max_value: 16, {GROWING.replace('total_curriculum_step', 'require_steps')}}}".replace(
    "difficulty_step", "seq_per_step"
)
ROUTING = f"random_ltd: {{enabled: true, random_ltd_layer_id: [1], random_ltd_schedule: {SLOWER}}}"
ROUTED = ("num_layers=3", f"data_efficiency={{enabled: true, data_routing: {{enabled: true, {ROUTING}}}}}")
ROUNDED = technique(
    WEIGHTS, "quantize_weight_in_forward: true", "start_bits: 6, target_bits: 4, quantization_period: 1"
)
SNIP = (f"{SPARSE}.{SHARED}={{enabled: true, method: snip_momentum, schedule_offset_end: 3, dense_ratio: 0.5}}",)
AROUND: dict[str, Sets] = {
    "lora": ("lora.enabled=true",),
    WEIGHTS: ROUNDED,
    INPUTS: technique(INPUTS, "schedule_offset: 0", "bits: 4"),
    SPARSE: technique(SPARSE, "method: l1", "dense_ratio: 0.5"),
    ROWS: technique(ROWS, "method: l1", "dense_ratio: 0.5"),
    HEADS: (
        f"{HEADS}.{SHARED}={{enabled: true, num_heads: 2}}",
        f"{HEADS}.different_groups={{g: {{params: {{dense_ratio: 0.5}}, modules: [attention.output]}}}}",
    ),
    LEARNING: lengths(GROWING),
    SKIPPING: ROUTED,
    "data_efficiency": ROUTED,
    SAMPLING: sampled(GROWING),
    "eigenvalue": ("eigenvalue.enabled=true",),
    "ema": ("ema.enabled=true",),
    "spike_guard": ("spike_guard={enabled: true, least: 2}",),
    "moe": ("mlp_type=moe", "moe_num_experts=4", "moe_top_k=2"),
}
"""Name of a block -> what makes it act; the longest counts."""
PARTS: dict[str, Sets] = {
    "architecture bert": ENCODER,
    "architecture retriever": RETRIEVED,
    "objective masked-lm": ENCODER,
    "objective inverse-cloze": RETRIEVED,
    "feed forward moe": AROUND["moe"],
    "data backend text": TEXT,
    "scheduler LRRangeTest": ("train_iters=8",),
}
CYCLE = ("scheduler.params.cycle_first_step_size=2", "scheduler.params.decay_lr_rate=0.5")
CYCLE += ("scheduler.params.decay_step_size=1", "train_iters=8")
WARMED = ("scheduler.params.warmup_num_steps=1", "train_iters=6")
MORE: dict[str, Sets] = {
    "optimizer OneBitAdam": ("optimizer.params.freeze_step=1",),
    "optimizer OneBitLamb": (
        *("optimizer.params.freeze_step=2", "optimizer.params.coeff_beta=0.5", "train_iters=5"),
        *("optimizer.params.factor_threshold=0.5",),
    ),
    "optimizer ZeroOneAdam": (
        *("optimizer.params.var_freeze_step=4", "optimizer.params.var_update_scaler=1", "train_iters=14"),
        *("optimizer.params.local_step_scaler=1", "optimizer.params.local_step_clipper=2"),
    ),
    "optimizer RAdam": ("train_iters=8",),
    **{f"sparse layout {each}": LONG for each in ("bigbird", "bslongformer", "dense", "fixed", "local", "variable")},
    "lr schedule wsd": ("train_iters=8", "lr_wsd_decay_fraction=0.5"),
    "position rotary": ("hidden_size=64",),
    **dict.fromkeys(("scheduler 1Cycle", "scheduler OneCycle"), CYCLE),
    **dict.fromkeys(("scheduler WarmupCosineLR", "scheduler WarmupDecayLR"), WARMED),
    "evaluator samples": (*TEXT, "split=80,10,10", "eval_iters=1", "eval_interval=1"),
}
"""Part -> what else stands beside each of its keys."""
BOTH_WAYS = "sparse_attention={mode: fixed, block: 8, attention: bidirectional}"
SPREAD = ("pos_emb=rotary", *YARN, "rotary_beta_fast=0.5", "rotary_beta_slow=0.05")
GPT2 = ("vocab_file={folder}/vocab.json", "merge_file={folder}/merges.txt")
TOKENIZERS: dict[str, Sets] = {
    "BertWordPieceCase": ("vocab_file={folder}/words.txt",),
    "BertWordPieceLowerCase": ("vocab_file={folder}/words.txt",),
    "GPT2BPETokenizer": GPT2,
    "GPT2Tokenizer": GPT2,
    "HFGPT2Tokenizer": ("vocab_file={folder}/tokenizer.json", "eod_token=b"),
    "HFTokenizer": ("vocab_file={folder}/tokenizer.json", "eod_token=b"),
    "SPMTokenizer": ("vocab_file={folder}/pieces.model",),
    "TiktokenTokenizer": ("vocab_file={folder}/ranks.tiktoken",),
}
"""Tokenizer -> its files, each with another one beside it whose name begins with `other-`."""
VALUES = {
    "split": "50,25,25",
    "seq_length": "8",
    "padded_vocab_size": "128",
    **{f"{each}_data_weights": "[3.0, 1.0]" for each in SPLITS},
    **{f"{each}_data_paths": "[{folder}/more]" for each in SPLITS},
    "weighted_sampler_alpha": "0.0",
    "train_batch_size": "4",
    "train_micro_batch_size_per_gpu": "1",
    "rampup_batch_size": "[2, 2, 8]",
    "train_iters": "2",
    "eval_iters": "2",
    "eval_interval": "1",
    "log_interval": "2",
    "sample_prompt": "a",
    "warmup": "0.5",
    "lr_decay_iters": "2",
    "min_lr": "5e-3",
    "gradient_clipping": "0.01",
    "save": "{folder}/elsewhere",
    "save_interval": "1",
    "extra_save_iters": "[1]",
    "load": "{folder}/run0",
    "hidden_size": "32",
    "hidden_dropout": "0.2",
    "head_dim": "4",
    "intermediate_size": "8",
    "max_position_embeddings": "32",
    "sliding_window_width": "4",
    "embedding_multiplier": "2.0",
    "sparse_attention": "{block: 4}",
    "lora.target_modules": "[mlp.up]",
    "lora.rank": "2",
    **dict.fromkeys(("layernorm_epsilon", "rms_norm_epsilon", "scalenorm_epsilon"), "1e-2"),
    "query_length": "4",
    "rotary_original_positions": "4",
    "rotary_beta_fast": "0.2",
    "rotary_beta_slow": "0.01",
    "lr_wsd_decay_fraction": "0.25",
    f"{INPUTS}.{SHARED}.schedule_offset": "2",
    f"{WEIGHTS}.{SHARED}.quantize_weight_in_forward": "false",
    "architecture bert: sparse_attention": "{mode: fixed, block: 4, attention: bidirectional}",
    "samples.prompts": "[ab]",
    "samples.interval": "2",
    "optimizer OneBitAdam: optimizer.params.freeze_step": "2",
    "optimizer OneBitLamb: optimizer.params.coeff_beta": "0.3",
    "eod_token": "c",
    "moe_loss_coeff": "0.5",
    "moe_top_k": "1",
    "scalenorm_epsilon": "0.9",
    "query_in_block_prob": "1.0",
    "optimizer Lamb: optimizer.params.max_coeff": "0.02",
    "optimizer OneBitLamb: optimizer.params.max_coeff": "0.02",
    "optimizer OneBitLamb: optimizer.params.freeze_step": "3",
    "optimizer OneBitLamb: optimizer.params.factor_max": "1.001",
    "optimizer OneBitLamb: optimizer.params.factor_min": "1.5",
    "optimizer OneBitLamb: optimizer.params.factor_threshold": "0.001",
    "optimizer ZeroOneAdam: optimizer.params.var_update_scaler": "3",
    "optimizer ZeroOneAdam: optimizer.params.local_step_scaler": "2",
    "optimizer RMSprop: optimizer.params.alpha": "0.5",
    "eigenvalue.max_iter": "1",
    "eigenvalue.tol": "0.9",
    "eigenvalue.stability": "1.0",
    "eigenvalue.layer_num": "1",
    "ema.decay": "0.5",
    f"{WEIGHTS}.{GROUP}.params.target_bits": "5",
    f"{WEIGHTS}.{SHARED}.fp16_mixed_quantize.quantize_change_ratio": "0.5",
    **{f"{each}.{GROUP}.modules": "[mlp.down]" for each in (WEIGHTS, INPUTS, SPARSE, ROWS)},
    f"{HEADS}.{GROUP}.modules": "[layers.0.attention.output]",
    **{f"{each}.{GROUP}.params.dense_ratio": "0.25" for each in (SPARSE, ROWS)},
    f"{HEADS}.{GROUP}.params.dense_ratio": "1.0",
    f"{BLOCKWISE}.schedule_offset_end": "2",
    f"{BLOCKWISE}.excluded_modules": "[mlp.up]",
    f"{LEARNING}.min_difficulty": "8",
    f"{SEQLEN}.min_difficulty": "8",
    f"{LEARNING}.schedule_config.total_curriculum_step": "2",
    f"{SEQLEN}.schedule_config.total_curriculum_step": "2",
    f"{LEARNING}.schedule_config.difficulty_step": "8",
    f"{SEQLEN}.schedule_config.difficulty_step": "8",
    f"{LEARNING}.schedule_config.root_degree": "4",
    f"{SEQLEN}.schedule_config.root_degree": "4",
    f"{LEARNING}.schedule_config.difficulty": "[8, 16]",
    f"{SEQLEN}.schedule_config.difficulty": "[8, 16]",
    f"{LEARNING}.schedule_config.max_step": "[1]",
    f"{SEQLEN}.schedule_config.max_step": "[1]",
    f"{SKIPPING}.random_ltd_layer_id": "[0]",
    f"{SKIPPING}.random_ltd_schedule.min_value": "4",
    f"{SKIPPING}.random_ltd_schedule.schedule_config.require_steps": "2",
    f"{SKIPPING}.random_ltd_schedule.schedule_config.seq_per_step": "8",
    "optimizer.params.eps": "1e-2",
    "optimizer.params.weight_decay": "0.5",
    "optimizer.params.freeze_step": "1",
    "text_key": "body",
    "scheduler.params.total_num_steps": "2",
    "scheduler.params.decay_step_size": "3",
    "scheduler.params.decay_mom_rate": "0.01",
    "scheduler.params.cycle_second_stair_count": "1",
    "rpe_max_distance": "12",
    "sparse_attention.global_block_indices": "[1]",
    "sparse_attention.global_block_end_indices": "[3]",
    "csv_monitor.output_path": "other",
    "tensorboard.output_path": "other",
    "tensorboard_dir": "other",
}
"""A value with an effect within so few steps; the others have that of changed_keys.py."""
BESIDE: dict[str, Sets] = {
    **{f"{each}_data_weights": WEIGHTED for each in SPLITS},
    **dict.fromkeys((f"{each}_data_paths" for each in SPLITS), BLEND),
    "weight_by_num_documents": BLEND,
    "weighted_sampler_alpha": (*BLEND, "weight_by_num_documents=true", "train_iters=20"),
    "make_vocab_size_divisible_by": (*TEXT, "padded_vocab_size=null"),
    **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "sample_prompt"), TEXT),
    "rampup_batch_size": ("gradient_accumulation_steps=4",),
    "scheduler.type": ("scheduler={type: WarmupDecayLR, params: {warmup_num_steps: 1}}", "train_iters=6"),
    "load": RESUMED[1:],
    **dict.fromkeys(("finetune", "no_load_optim"), RESUMED),
    **dict.fromkeys(("save", "save_interval", "extra_save_iters"), ()),
    "keep_last_n_checkpoints": ("save_interval=1",),
    "param_sharing_style": ("num_layers=4", "num_unique_layers=2"),
    "sparse_attention": ("sparsity=all", *LONG),
    "ema.enabled": (),
    "spike_guard.enabled": (),
    "lora.enabled": (),
    "eigenvalue.enabled": (),
    **{f"{BLOCKWISE}.schedule_offset_{each}": SNIP for each in ("end", "stride")},
    **{f"{BLOCKWISE}.{each}": SNIP for each in ("block_pattern", "dense_ratio", "excluded_modules")},
    f"{WEIGHTS}.{SHARED}.fp16_mixed_quantize.quantize_change_ratio": (
        *technique(WEIGHTS, "quantize_weight_in_forward: true", "start_bits: 4, target_bits: 4"),
        f"{WEIGHTS}.{SHARED}.fp16_mixed_quantize.enabled=true",
    ),
    **dict.fromkeys(
        (f"rotary_{each}" for each in ("beta_fast", "beta_slow", "original_positions", "truncate")), SPREAD
    ),
    **{
        f"{learning}.schedule_config.{key}": given(schedule)
        for learning, given in ((LEARNING, lengths), (SEQLEN, sampled))
        for key, schedule in (("root_degree", ROOT), ("difficulty", STAIRS), ("max_step", STAIRS))
    },
    "architecture bert: sparse_attention": ("sparsity=all", BOTH_WAYS, *LONG),
    "optimizer SGD: optimizer.params.dampening": ("optimizer={type: SGD, params: {lr: 1e-2, momentum: 0.9}}",),
    **{f"samples.{key}": ("samples.prompts=[a]", "evaluators=[samples]") for key in ("prompts", "interval")},
    "text_key": TEXT,
    "rpe_num_buckets": ("pos_emb=rpe",),
    "rpe_max_distance": ("pos_emb=rpe", "rpe_num_buckets=8"),
    "tensorboard_dir": ("tensorboard.enabled=true",),
}
"""What stands beside a key, instead of what its part has."""
ENCODERS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "sliding_window_width", "use_bias_in_head")
REFUSED_BY: dict[str, tuple[str, ...]] = {
    "engine plain": ("bf16.enabled", "fp16.enabled"),
    "architecture bert": ENCODERS,
    "curriculum data_efficiency": (
        *(f"{SKIPPING}.{each}" for each in ("total_layer_num", "random_ltd_layer_num")),
        f"{SKIPPING}.random_ltd_schedule.max_value",
        f"{SEQLEN}.max_difficulty",
    ),
    "model change compression": (
        f"{WEIGHTS}.{SHARED}.quantize_weight_in_forward",
        f"{HEADS}.{SHARED}.num_heads",
    ),
}
"""Part -> its keys of which the runs here take one value, and any other is an error that says so."""
SAID = {
    f"{SKIPPING}.model_type",
    f"{SKIPPING}.hidden_state_order",
    f"{SKIPPING}.random_ltd_schedule.schedule_type",
    f"{HEADS}.{SHARED}.method",
}
"""Keys that say what holds; what they may say besides is an error or has a note."""


def named(key: Key) -> tuple[str, str]:
    return f"{key.part}: {key.path}", key.path


def short_run_of(key: Key) -> tuple[Sets, Sets]:
    """What is set in a run without its change, and in one with it."""
    kind, _, name = key.part.rpartition(" ")
    given = next((BESIDE[each] for each in named(key) if each in BESIDE), None)
    blocks = sorted((each for each in AROUND if f"{key.path}.".startswith(f"{each}.")), key=len)
    if given is None and kind == "tokenizer":
        given = (*BYTES, f"tokenizer_type={name}", *TOKENIZERS[name])
    elif given is None and blocks:
        alone = key.path.endswith(".enabled")
        path = key.path.replace("<group>", "g")
        given = tuple(each for each in AROUND[blocks[-1]])
        given = (*given, f"{path}=false") if alone else given
    elif given is None:
        given = beside_of(key)
    engine = ("engine=deepspeed",) if name in DEEPSPEED else ()
    before = (*engine, *PARTS.get(key.part, ()), *given, *MORE.get(key.part, ()))
    value = next((VALUES[each] for each in named(key) if each in VALUES), None)
    if value is None and kind == "tokenizer" and key.path in ("vocab_file", "merge_file"):
        file = next(each for each in TOKENIZERS[name] if each.startswith(key.path)).rpartition("/")[2]
        value = f"{{folder}}/other-{file}"
    path = key.path.replace("<metric>", "seqlen").replace("<group>", "g")
    return before, (*before, f"{path}={value_of(key) if value is None else value}")
