"""The rules on sparse attention, data efficiency, elasticity and compression."""

from rule_index.said import Said


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


INDEX: dict[int, tuple[str | Said, ...]] = {
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
}  # fmt: skip
