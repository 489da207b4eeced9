"""Each rule between keys: broken once, and just held once."""

from collections.abc import Callable
from typing import get_origin

import pytest
from neox_reference.rule_index import all_rules, rules_about

from neox_core.config.schema.convert import block_of, fields_of
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.rules.rule import Rule, keys_of

Check = Callable[..., list[str]]
CPU, GPU = Machine(0, 4), Machine(2, 4)
# rule -> sets that break it, what is said, sets that just hold it, machine
REGISTRY = load_plugins().registry
RULES = all_rules(REGISTRY)
CASES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], Machine]] = {
    "heads_divide_hidden": (
        ("hidden-size=65",),
        "error: hidden-size: 65 cannot be divided by num-attention-heads 4",
        ("hidden-size=68",),
        CPU,
    ),
    "attention_said_once": (
        ("sparsity=all", "attention-config=[[[global], all]]"),
        "error: attention-config: contradicts sparsity (keep one of the two)",
        ("attention-config=[[[global], all]]",),
        CPU,
    ),
    "attention_fits_layers": (
        ("attention-config=[[[global], 3]]",),
        "error: attention-config: names the attention of 3 layers, and num-layers is 2",
        ("attention-config=[[[global], 2]]",),
        CPU,
    ),
    "feed_forwards_fit_layers": (
        ("mlp-type=[[[regular], 3]]",),
        "error: mlp-type: names the feed-forward of 3 layers, and num-layers is 2",
        ("mlp-type=[[[regular], 2]]",),
        CPU,
    ),
    "sparse_block_used": (
        ("sparse_attention.block=8",),
        "error: sparse_attention: does nothing: no layer is sparse (set sparsity: all)",
        ("sparse_attention.block=8", "sparsity=interspersed"),
        CPU,
    ),
    "blocks_divide_sequence": (
        ("sparsity=all", "sparse_attention.block=12"),
        "error: sparse_attention.block: 12 does not divide seq-length 32",
        ("sparsity=all", "sparse_attention.block=32"),
        CPU,
    ),
    "sequence_fits_positions": (
        ("seq-length=33",),
        "error: seq-length: 33 is more than max-position-embeddings 32",
        ("seq-length=32",),
        CPU,
    ),
    "vocabulary_known": (
        ("padded-vocab-size=null",),
        "error: tokenizer-type: is required (or padded-vocab-size, for a dataset without tokenizer)",
        ("padded-vocab-size=null", "tokenizer-type=HFTokenizer", "vocab-file=a"),
        CPU,
    ),
    "padding_agrees": (
        ("make-vocab-size-divisible-by=100",),
        "error: padded-vocab-size: 256 is not a multiple of make-vocab-size-divisible-by 100",
        ("make-vocab-size-divisible-by=64",),
        CPU,
    ),
    "one_residual": (
        ("gpt-j-residual=true", "apply-residual-connection-post-layernorm=true"),
        "error: apply-residual-connection-post-layernorm: excludes gpt-j-residual",
        ("gpt-j-residual=false", "apply-residual-connection-post-layernorm=true"),
        CPU,
    ),
    "width_is_no_sum": (
        ("hidden-size=64", "intermediate-size=516"),
        "warning: intermediate-size: 516 is more than 8 times hidden-size 64 (172 is the width that GPT-NeoX derives",
        ("hidden-size=64", "intermediate-size=512"),
        CPU,
    ),
    "kv_heads_divide_heads": (
        ("num-kv-heads=3",),
        "error: num-kv-heads: num-attention-heads 4 cannot be divided by 3",
        ("num-kv-heads=2",),
        CPU,
    ),
    "norms_after_sublayers": (
        ("norm-place=both", "gpt-j-residual=true"),
        "error: norm-place: both excludes gpt-j-residual",
        ("norm-place=both",),
        CPU,
    ),
    "a_tied_head_has_no_bias": (
        ("use-bias-in-head=true",),
        "error: use-bias-in-head: needs no-weight-tying: true",
        ("use-bias-in-head=true", "no-weight-tying=true"),
        CPU,
    ),
    "windows_have_a_width": (
        ("attention-config=[[[sliding, global], all]]",),
        "error: attention-config: calls layers sliding, which needs their window (set sliding-window-width)",
        ("attention-config=[[[sliding, global], all]]", "sliding-window-width=4"),
        CPU,
    ),
    "windows_are_shorter_than_samples": (
        ("sliding-window-width=31",),
        "note: sliding-window-width: hides nothing from the tokens of a sample, of which there are 32",
        ("sliding-window-width=30",),
        CPU,
    ),
    "shared_blocks_are_alike": (
        ("attention-config=[[[sliding, global], all]]", "sliding-window-width=4", "num-unique-layers=1"),
        "error: attention-config: excludes num-unique-layers (name one attention for all layers)",
        ("attention-config=[[[sliding, global], all]]", "sliding-window-width=4"),
        CPU,
    ),
    "nope_leaves_something_out": (
        ("attention-config=[[[nope, global], all]]", "pos-emb=learned"),
        "error: attention-config: calls layers nope, and pos-emb learned acts on no layer (such as pos-emb: rotary)",
        ("attention-config=[[[global, global], all]]", "pos-emb=learned"),
        CPU,
    ),
    "queries_and_keys_have_one_norm": (
        ("use-qk-layernorm=true", "num-kv-heads=2"),
        "error: use-qk-layernorm: queries have 4 heads and keys 2, and one norm for both",
        ("use-qk-layernorm=true",),
        CPU,
    ),
    "unique_layers_divide_layers": (
        ("num-layers=4", "num-unique-layers=3"),
        "error: num-unique-layers: num-layers 4 cannot be divided by 3",
        ("num-layers=4", "num-unique-layers=2"),
        CPU,
    ),
    "sharing_has_layers": (
        ("param-sharing-style=spaced",),
        "warning: param-sharing-style: does nothing without num-unique-layers",
        ("param-sharing-style=spaced", "num-unique-layers=1"),
        CPU,
    ),
    "one_norm_for_parallel_residual": (
        ("gpt-j-tied=true",),
        "error: gpt-j-tied: needs gpt-j-residual: true",
        ("gpt-j-tied=true", "gpt-j-residual=true"),
        CPU,
    ),
    "layer_scaling_is_in_fp32": (
        ("apply-query-key-layer-scaling=true", "attention-softmax-in-fp32=false"),
        "error: attention-softmax-in-fp32: contradicts apply-query-key-layer-scaling",
        ("apply-query-key-layer-scaling=true",),
        CPU,
    ),
    "documents_have_an_end": (
        ("eod-mask-loss=true",),
        "error: eod-mask-loss: needs the token that ends a document (set tokenizer-type)",
        ("eod-mask-loss=true", "reset-position-ids=true", "tokenizer-type=HFTokenizer", "vocab-file=a"),
        CPU,
    ),
    "weights_are_drawn_on_the_cpu": (
        ("use-cpu-initialization=false",),
        "note: use-cpu-initialization: changes nothing: neox always draws the initial weights there",
        (),
        CPU,
    ),
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
    "batch_fits": (
        ("train_batch_size=6",),
        "error: train_batch_size: 6 cannot be divided by 4 samples x 1 ranks = 4 (8 can)",
        ("train_batch_size=8",),
        CPU,
    ),
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
    "profiles_switched_on": (
        ("flops_profiler.top_modules=3",),
        "warning: flops_profiler.top_modules: does nothing without flops_profiler.enabled",
        ("flops_profiler.top_modules=3", "flops_profiler.enabled=true"),
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
    "save_has_interval": (
        ("save=out",),
        "note: save: has no save-interval, so that the run saves at its end",
        ("save=out", "save-interval=5"),
        CPU,
    ),
    "stores_have_an_address": (
        ("save=file://me:secret@host/run", "save-interval=5"),
        (
            "error: save: must not hold credentials: a run stores and prints the address (remove what is before @ or"
            " after ?, and set them in the environment, such as AWS_ACCESS_KEY_ID)"
        ),
        ("save=file:///host/run", "save-interval=5"),
        CPU,
    ),
    "extra_saves_can_be_made": (
        ("extra-save-iters=[5]",),
        "note: extra-save-iters: does nothing without save",
        ("extra-save-iters=[5, 100]", "save=out", "save-interval=50"),
        CPU,
    ),
    "no_loss_depends_on_a_generator": (
        ("no-load-rng=true", "load=out"),
        "note: no-load-rng: changes no number of the run: weights, dropout and the order of the data follow",
        ("load=out",),
        CPU,
    ),
    "settled_for_all_checkpoints": (
        ("checkpoint.load_universal=true",),
        "note: checkpoint.load_universal: changes no number of the run: checkpoints load on any number of ranks",
        (),
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
    "components_have_libraries": (
        ("monitors=[console, far]",),
        "error: monitors: far needs neox_no_such_library, not installed (install neox_no_such_library as the author of",
        ("monitors=[console, web]",),
        CPU,
    ),
    "evaluators_have_evaluations": (
        ("evaluators=[counter]", "eval-iters=0"),
        "error: eval-iters: is 0, so no evaluator measures anything (set it, or remove the evaluators)",
        ("evaluators=[counter]", "eval-iters=1", "eval-interval=1"),
        CPU,
    ),
    "named_ones_not_switched_off": (
        ("monitors=[board]", "board.enabled=false"),
        "error: board.enabled: false contradicts monitors, which names board",
        ("monitors=[board]", "board.enabled=true"),
        CPU,
    ),
    "profile_needs_timers": (
        ("flops_profiler.enabled=true", "wall-clock-breakdown=false"),
        "warning: wall-clock-breakdown: is switched on anyway",
        ("flops_profiler.enabled=false", "wall-clock-breakdown=false"),
        CPU,
    ),
    "pipelines_are_not_timed": (
        ("num_gpus=2", "pipe-parallel-size=2", "wall-clock-breakdown=true"),
        "error: wall-clock-breakdown: the engine cannot time a pipeline (measure with pipe-parallel-size: 1)",
        ("num_gpus=2", "pipe-parallel-size=1", "wall-clock-breakdown=true"),
        CPU,
    ),
    "timed_collectives_chosen_once": (
        ("comms_logger={enabled: true, prof_ops: [all_reduce]}",),
        "error: comms_logger.prof_ops: does nothing with prof_all",
        ("comms_logger={enabled: true, prof_all: false, prof_ops: [all_reduce]}",),
        CPU,
    ),
    "finetune_has_source": (
        ("finetune=true",),
        "error: finetune: does nothing without load",
        ("finetune=true", "load=in"),
        CPU,
    ),
    "split_is_shares": (("split=1,-1",), "error: split: must be non-negative shares", ("split=1,0",), CPU),
    "ranks_make_whole_copies": (
        ("num_gpus=3", "model-parallel-size=2"),
        "error: model-parallel-size: a copy of the model takes 2 x 1 = 2 ranks, and there are 3",
        ("num_gpus=4", "model-parallel-size=2", "pipe-parallel-size=2"),
        CPU,
    ),
    "pipeline_keeps_gradients": (
        ("num_gpus=2", "pipe-parallel-size=2", "zero_optimization.stage=2", "optimizer.type=AnyStage"),
        "error: zero_optimization.stage: 2 does not work with pipe-parallel-size 2 (use stage: 1, or no pipeline)",
        ("num_gpus=2", "pipe-parallel-size=2", "zero_optimization.stage=1", "optimizer.type=AnyStage"),
        CPU,
    ),
    "widths_divide": (
        ("num_gpus=2", "model-parallel-size=2", "intermediate-size=255"),
        "error: intermediate-size: 255 cannot be divided by model-parallel-size 2",
        ("num_gpus=2", "model-parallel-size=2", "intermediate-size=254"),
        CPU,
    ),
    "stages_have_layers": (
        ("num_gpus=3", "pipe-parallel-size=3"),
        "error: pipe-parallel-size: 3 stages cannot share 2 layers",
        ("num_gpus=3", "pipe-parallel-size=3", "num-layers=3"),
        CPU,
    ),
    "positions_are_shared": (
        ("num_gpus=2", "model-parallel-size=2", "sequence-parallel=true", "seq-length=31"),
        "error: seq-length: 31 cannot be divided by model-parallel-size 2",
        ("num_gpus=2", "model-parallel-size=2", "sequence-parallel=true", "seq-length=30"),
        CPU,
    ),
    "half_precision_is_sharded": (
        ("num_gpus=2", "pipe-parallel-size=2", "bf16.enabled=true"),
        "error: zero_optimization.stage: 0 computes the norm of a gradient wrongly",
        ("num_gpus=2", "model-parallel-size=2", "bf16.enabled=true"),
        CPU,
    ),
    "partition_has_pipeline": (
        ("pipe-partition-method=uniform",),
        "warning: pipe-partition-method: does nothing with pipe-parallel-size 0",
        ("pipe-partition-method=uniform", "num_gpus=2", "pipe-parallel-size=2"),
        CPU,
    ),
    "one_host_filter": (
        ("include=localhost", "exclude=localhost:1"),
        "error: exclude: contradicts include (keep one of the two)",
        ("include=localhost:0",),
        GPU,
    ),
    "filter_or_count": (
        ("include=localhost:0", "num_nodes=1"),
        "error: num_nodes: contradicts include, which selects by name (keep one of the two)",
        ("exclude=localhost:0", "num_nodes=-1"),
        GPU,
    ),
    "nvlink_pairs_share_layers": (
        ("detect_nvlink_pairs=true",),
        "error: detect_nvlink_pairs: is for model-parallel-size 2, not 1 (remove it)",
        ("detect_nvlink_pairs=true", "model-parallel-size=2"),
        GPU,
    ),
    "files_are_there": (
        ("tokenizer-type=GPT2BPETokenizer", "vocab-file=a", "merge-file=b"),
        "error: merge-file: there is no file b",
        ("tokenizer-type=GPT2BPETokenizer", "vocab-file=a", f"merge-file={__file__}"),
        CPU,
    ),
    "data_is_there": (("data-path=nowhere/x",), "error: data-path: there is no dataset nowhere/x", (), CPU),
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
    "batch_can_grow": (
        ("rampup-batch-size=[3, 1, 64]", "train_batch_size=8", "train_micro_batch_size_per_gpu=2"),
        "error: rampup-batch-size: 2 samples are a micro-batch of each data-parallel rank, and 3 or 1",
        ("rampup-batch-size=[4, 2, 64]", "train_batch_size=8", "train_micro_batch_size_per_gpu=2"),
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
    "neox_takes_the_norm_it_counts_in": (
        ("gradient-norm-counts=[['norm.*', 0]]", "zero_optimization.stage=1"),
        "warning: gradient-norm-counts: does nothing: DeepSpeed takes the norm at ZeRO stage 1, and counts each",
        ("gradient-norm-counts=[['norm.*', 0]]",),
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
# rules whose cases take more than `--set`: in test_rules_offload.py, test_blend.py, test_rules_idle.py, and below
ELSEWHERE = {"one_offload", "files_need_libaio", "files_are_read_in_order", "buffers_hold_a_parameter"} | {
    "whole_weights_are_in_memory",
    "one_dataset_or_several",
    "every_split_has_datasets",
    "weight_for_each_dataset",
    "weights_from_one_place",
    "local_storage_is_of_one_host",
    "keys_of_the_device",
    "fast_start_reads_files",
    "onnx_has_no_fusion",  # test_kernels.py
    "engine_does_what_optimizer_uses",  # tests/unit/checkpoint/test_optimizer_page.py
    "mixers_have_planners",  # plugins/neox-gpt/tests/test_mixers.py
    "mixers_of_shared_blocks",
    "mixers_are_causal",
    "mixers_can_decode",
    "mixers_can_be_split",
    "positions_are_taken",
    "feed_forwards_can_be_split",  # plugins/neox-gpt/tests/test_check_feed_forward.py
    "feed_forwards_can_be_spread",  # plugins/neox-moe/tests/test_runs.py, tests/e2e/test_spread_experts.py
    "pipeline_makes_one_pass",  # plugins/neox-author/tests/test_check_loss.py
    "model_changes_change_something",  # plugins/neox-gpt/tests/test_check_model_change.py
    "model_changes_can_be_split",
    "model_changes_need_whole_weights",
    "model_changes_are_not_compiled",
    "keys_that_do_nothing_here",  # test_rules_idle.py
}


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in RULES} == set(CASES) | ELSEWHERE


def _known(key: str) -> bool:
    """Whether a dotted key is a setting of the core, or in a block whose keys a component owns."""
    name, *inner = key.split(".")
    classes: list[type] = [section.settings for section in CORE_SECTIONS]
    classes += [section.settings for _, section in REGISTRY.sections_of_components()]
    for part in (name, *inner):
        found = next((each for cls in classes for each in fields_of(cls) if each.name == part), None)
        if found is None:
            return False
        if get_origin(found.type) is dict:
            return True  # of a component, such as the params of an optimizer
        block = block_of(found.type)
        classes = [block] if block else []
    return True


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each.__name__)
def test_every_rule_says_itself_and_which_keys_it_is_about(rule: Rule) -> None:
    assert [key for key in keys_of(rule) if not _known(key)] == []
    name, said = next(each for each in rules_about(keys_of(rule)[0], REGISTRY) if each[0] == rule.__name__)
    assert name == rule.__name__
    assert said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize("rule", CASES)
def test_rule(check: Check, rule: str) -> None:
    broken, said, held, machine = CASES[rule]
    found = check(*broken, machine=machine)
    assert len(found) == 1
    assert said in found[0]
    assert check(*held, machine=machine) == []


def test_an_engine_needs_its_library_where_ranks_can_run(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, object] = {"torch": object(), "deepspeed": None}
    for module in ("neox_core.hooks.component", "neox_core.plan.rules.components"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: there.get(name, name))
    (said,) = check()
    assert "error: engine: deepspeed needs deepspeed, not installed (pip install" in said
    assert check("engine=plain") == []
    there["torch"] = None
    assert check() == []


def test_the_base_config_has_no_problem(check: Check) -> None:
    assert check() == []
