"""Rules about hosts, ranks, and how a batch and a model are split over them."""

from rule_cases.case import CPU, GPU, Case

CASES: dict[str, Case] = {
    "batch_fits": (
        ("train_batch_size=6",),
        "error: train_batch_size: 6 cannot be divided by 4 samples x 1 ranks = 4 (8 can)",
        ("train_batch_size=8",),
        CPU,
    ),
    "batch_can_grow": (
        ("rampup-batch-size=[3, 1, 64]", "train_batch_size=8", "train_micro_batch_size_per_gpu=2"),
        "error: rampup-batch-size: 2 samples are a micro-batch of each data-parallel rank, and 3 or 1",
        ("rampup-batch-size=[4, 2, 64]", "train_batch_size=8", "train_micro_batch_size_per_gpu=2"),
        CPU,
    ),
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
}
