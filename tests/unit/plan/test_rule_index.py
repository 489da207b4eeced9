"""The 74 rules between the keys of the documents, by number: what holds each of them, and where it is tested.

A name is a rule of `plan/rules`, with a case in tests/helpers/rule_cases. `Said` is what a setting, a plugin, the
loader or the plan says, broken and just held here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from neox_reference.rule_index import all_rules

from neox_core.config.report import ProblemsError, errors, render
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

CPU, GPU = Machine(0, 4), Machine(4, 4)


@frozen
class Said:
    """Sets that break a rule, a part of what is said, sets that just hold it."""

    broken: tuple[str, ...]
    said: str
    held: tuple[str, ...] = ()
    machine: Machine = CPU


def elastic(*more: str, **changed: object) -> tuple[str, ...]:
    """Batches of up to 8 samples, with keys changed; None: left out."""
    block = {"enabled": "true", "max_train_batch_size": 8, "micro_batch_sizes": [1, 2], **changed}
    inner = ", ".join(f"{key}: {value}" for key, value in block.items() if value is not None)
    return ("train_micro_batch_size_per_gpu=null", f"elasticity={{{inner}}}", *more)


def rounded(params: str, shared: str = "in_forward: true") -> tuple[str, ...]:
    """Weights of all layers rounded."""
    at = "compression_training.weight_quantization"
    return (
        f"{at}.shared_parameters={{enabled: true, quantize_weight_{shared}}}",
        f"{at}.different_groups={{g: {{params: {{{params}}}}}}}",
    )


def pruned(what: str, shared: str = "", params: str = "") -> tuple[str, ...]:
    """Some of all layers pruned."""
    at = f"compression_training.{what}_pruning"
    return (
        f"{at}.shared_parameters={{enabled: true, {shared}}}",
        f"{at}.different_groups={{g: {{params: {{{params}}}}}}}",
    )


def sparse(settings: str) -> tuple[str, ...]:
    """All layers sparse, in blocks of 4 positions of 32."""
    return ("sparsity=all", f"sparse_attention={{block: 4, {settings}}}")


def one_bit(name: str, more: str = "freeze_step: 5") -> tuple[str, ...]:
    """One of the 1-bit family on a CPU."""
    return (f"optimizer={{type: {name}, params: {{cuda_aware: false, comm_backend_name: gloo, {more}}}}}",)


STEPS = "total_curriculum_step: 10, difficulty_step: 8"
EASY = f"min_difficulty: 1, max_difficulty: 9, schedule_type: fixed_linear, schedule_config: {{{STEPS}}}"
INDEX_OF = "clustering_type: schedule_based, index_to_sample_path: s"


def older(changed: str = "schedule_type: fixed_linear", config: str = STEPS) -> tuple[str, ...]:
    """The older curriculum over the 32 tokens of a sample, with one key changed."""
    block = {"min_difficulty": "8", "max_difficulty": "32", "schedule_type": "fixed_linear"}
    block[changed.partition(": ")[0]] = changed.partition(": ")[2]
    inner = ", ".join(f"{key}: {value}" for key, value in block.items())
    return (f"curriculum_learning={{enabled: true, curriculum_type: seqlen, {inner}, schedule_config: {{{config}}}}}",)


def ltd(*more: str, schedule: str = "min_value: 8", **changed: object) -> tuple[str, ...]:
    """Token dropping in the last of 2 layers, with keys changed."""
    values = {"min_value": "8", "max_value": "32", "schedule_type": "fixed_linear"}
    values[schedule.partition(": ")[0]] = schedule.partition(": ")[2]
    inner = ", ".join(f"{key}: {value}" for key, value in values.items())
    keys = ", ".join(f"{key}: {value}" for key, value in ({"random_ltd_layer_id": "[1]"} | changed).items())
    growth = "schedule_config: {require_steps: 10, seq_per_step: 8}"
    block = f"{{enabled: true, random_ltd: {{enabled: true, {keys}, random_ltd_schedule: {{{inner}, {growth}}}}}}}"
    return (f"data_efficiency={{enabled: true, data_routing: {block}}}", *more)


def metrics(inner: str) -> tuple[str, ...]:
    """A curriculum of these metrics."""
    learning = f"{{enabled: true, curriculum_metrics: {{{inner}}}}}"
    return (f"data_efficiency={{enabled: true, data_sampling: {{enabled: true, curriculum_learning: {learning}}}}}",)


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
            "pipe-partition-method: must be parameters, uniform or type:<regular expression>",
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
    # sparse attention
    50: ("blocks_divide_sequence", "sparse_block_used"),
    51: (
        Said(sparse("mode: fixed, attention: bidirectional"), "a decoder cannot look ahead", sparse("mode: fixed")),
        Said(sparse("mode: fixed, horizontal_global_attention: true"), "needs attention: bidirectional"),
    ),
    52: (
        Said(
            sparse("mode: fixed, num_local_blocks: 4, num_global_blocks: 3"),
            "4 is not a multiple of num_global_blocks 3",
            sparse("mode: fixed, num_local_blocks: 4, num_global_blocks: 2"),
        ),
        Said(sparse("mode: fixed, num_different_global_patterns: 2"), "need different_layout_per_head: true"),
        Said(
            sparse("mode: fixed, num_different_global_patterns: 5, different_layout_per_head: true"),
            "a window has room for 4, not 5",
            sparse("mode: fixed, num_different_global_patterns: 4, different_layout_per_head: true"),
        ),
    ),
    53: (
        Said(
            sparse("mode: variable, global_block_indices: [0, 2], global_block_end_indices: [1]"),
            "has 1 ends for 2 global_block_indices",
            sparse("mode: variable, global_block_indices: [0, 2], global_block_end_indices: [1, 3]"),
        ),
        Said(
            sparse("mode: variable, global_block_indices: [2], global_block_end_indices: [2]"),
            "2 does not come after its start 2",
            sparse("mode: variable, global_block_indices: [2], global_block_end_indices: [3]"),
        ),
        Said(
            sparse("mode: bigbird, num_random_blocks: 9"),
            "num_random_blocks: 9 is more than the 8 blocks",
            sparse("mode: bigbird, num_random_blocks: 8"),
        ),
        Said(
            sparse("mode: bigbird, num_sliding_window_blocks: 9"),
            "num_sliding_window_blocks: 9 is more than the 8 blocks",
            sparse("mode: bigbird, num_sliding_window_blocks: 7"),
        ),
    ),
    # data efficiency, elasticity, compression
    54: (
        Said(ltd(random_ltd_layer_num=2), "random_ltd_layer_num: must be 1, the length of", ltd()),
        Said(ltd(total_layer_num=3), "total_layer_num: must be num-layers, 2", ltd(total_layer_num=2)),
        Said(ltd(random_ltd_layer_id="[2]"), "must be different layers from 0 to 1", ltd(random_ltd_layer_id="[0]")),
    ),
    55: (
        Said(older("min_difficulty: 40"), "min_difficulty: 40 is above max_difficulty 32", older("min_difficulty: 32")),
        Said(older("max_difficulty: 24"), "max_difficulty: must be seq-length, 32, not 24", older()),
        Said(ltd(schedule="min_value: 40"), "min_value: 40 is above max_value 32", ltd(schedule="min_value: 32")),
        Said(ltd(schedule="max_value: 24"), "max_value: must be seq-length, 32", ltd()),
    ),
    56: (
        Said(
            older("schedule_type: fixed_discrete", "difficulty: [8, 16, 32], max_step: [5]"),
            "difficulty: has 3 values for 1 of max_step: one more is needed",
            older("schedule_type: fixed_discrete", "difficulty: [8, 32], max_step: [5]"),
        ),
    ),
    57: (
        Said(older(config="difficulty_step: 8"), "total_curriculum_step: is required by schedule_type: fixed_linear"),
        Said(older(config="total_curriculum_step: 8"), "difficulty_step: is required by schedule_type: fixed_linear"),
        Said(
            older("schedule_type: fixed_root"),
            "root_degree: is required by schedule_type: fixed_root",
            older("schedule_type: fixed_root", f"{STEPS}, root_degree: 2"),
        ),
        Said(metrics("a: {schedule_type: custom}"), "schedule_type: needs a function, which a config cannot hold"),
    ),
    58: (
        Said(
            metrics(f"a: {{{INDEX_OF}_percentile_merged, index_to_metric_path: m, difficulty_type: value}}"),
            "index_to_sample_path: a merged index has no values",
            metrics(f"a: {{{INDEX_OF}_percentile_merged, difficulty_type: percentile, {EASY}}}"),
        ),
        Said(metrics(""), "curriculum_metrics: is required while the curriculum is enabled"),
    ),
    59: (
        Said(
            (*older(), *ltd()),
            "a run has one curriculum, and curriculum_learning and data_efficiency are switched on",
            (*older(), *ltd("data_efficiency.enabled=false")),
        ),
    ),
    60: (
        Said(elastic(max_train_batch_size=None), "elasticity.max_train_batch_size: is required", elastic()),
        Said(elastic(micro_batch_sizes=None), "elasticity.micro_batch_sizes: is required", elastic()),
        Said(elastic(micro_batch_sizes=[9]), "9 is more than max_train_batch_size, 8", elastic(micro_batch_sizes=[8])),
        Said(elastic(micro_batch_sizes=[0]), "micro_batch_sizes: must be 1 to 64 numbers from 1", elastic()),
    ),
    61: (
        Said(elastic(min_gpus=0), "elasticity.min_gpus: must be", elastic(min_gpus=1)),
        Said(elastic(min_gpus=3, max_gpus=2), "elasticity.min_gpus: 3 is more than max_gpus, 2", elastic(max_gpus=2)),
        Said(elastic(min_time=-1), "elasticity.min_time:", elastic(min_time=0)),
        Said(
            elastic("num_gpus=2", "model-parallel-size=2", num_gpus_per_node=3, model_parallel_size=2),
            "elasticity.num_gpus_per_node: 3 cannot be divided by",
            elastic("num_gpus=2", "model-parallel-size=2", num_gpus_per_node=2, model_parallel_size=2),
        ),
    ),
    62: (
        Said(
            elastic("train_batch_size=8"),
            "train_batch_size: contradicts elasticity",
            elastic("train_batch_size=8", ignore_non_elastic_batch_info="true"),
        ),
    ),
    63: (
        Said(rounded("target_bits: 9"), "target_bits: 9 is above start_bits 8", rounded("target_bits: 8")),
        Said(rounded("", "in_forward: false"), "in_forward: false rounds the half-precision", rounded("")),
        Said(
            ("compression_training.activation_quantization.different_groups={g: {params: {bits: 3}}}",),
            "bits: must be >= 4: 3",
        ),
        Said(
            ("compression_training.weight_quantization.shared_parameters.quantizer_kernel=true",),
            "quantizer_kernel: cannot be true: torch rounds the weights",
            ("compression_training.weight_quantization.shared_parameters.quantizer_kernel=false",),
        ),
    ),
    64: (
        Said(
            pruned("sparse", "method: snip_momentum"),
            "snip_momentum compares the blocks of all layers, and has no groups",
            pruned("sparse", "method: l1"),
        ),
        Said(pruned("sparse", params="dense_ratio: 0"), "dense_ratio: must be > 0: 0", pruned("sparse")),
        Said(pruned("channel"), "channel_pruning.shared_parameters.enabled: is for convolutions"),
    ),
    65: (
        Said(pruned("head", "method: l1"), "method: must be"),
        Said(pruned("head"), "num_heads: is required"),
    ),
    66: (
        Said(("compression_training.layer_reduction.enabled=true",), "layer_reduction.teacher: is required"),
        Said(
            ("compression_training.layer_reduction={enabled: true, teacher_layer: [1, 1, 1], keep_number_layer: 3}",),
            "keep_number_layer: 3 is not num-layers",
        ),
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


@pytest.fixture(scope="module")
def installed() -> Any:
    return load_plugins()


@pytest.fixture
def said(tmp_path: Path, text: str, installed: Any) -> Callable[..., list[str]]:
    """All that is said of the base config with `--set`s and the installed plugins, errors only."""
    (tmp_path / "c.yml").write_text(text)

    def _said(sets: tuple[str, ...], machine: Machine = CPU) -> list[str]:
        try:
            prepare_run([tmp_path / "c.yml"], sets, catalog=installed, machine=machine)
        except ProblemsError as error:
            return [render([each]) for each in errors(error.problems)]
        return []

    return _said


def _each(kind: type) -> list[Any]:
    found = [(number, place, each) for number, items in INDEX.items() for place, each in enumerate(items)]
    return [pytest.param(each, id=f"{number}-{place}") for number, place, each in found if isinstance(each, kind)]


def test_no_rule_is_missing() -> None:
    assert list(INDEX) == list(range(1, 75))
    assert all(INDEX.values())


@pytest.mark.parametrize("name", _each(str))
def test_a_rule_that_is_named_is_there(name: str) -> None:
    assert name in {rule.__name__ for rule in all_rules(load_plugins().registry)}


@pytest.mark.parametrize("case", _each(Said))
def test_said(said: Callable[..., list[str]], case: Said) -> None:
    assert any(case.said in line for line in said(case.broken, case.machine)), said(case.broken, case.machine)
    assert said(case.held, case.machine) == []
