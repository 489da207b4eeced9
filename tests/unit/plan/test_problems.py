"""What is said of wrong values and of wrong values together, and the exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neox_core.config.report import ProblemsError, errors
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

Check = Callable[..., list[str]]
CPU, GPU = Machine(0, 4), Machine(2, 4)


def test_the_path_of_text_may_be_a_pattern(check: Check, tmp_path: Path) -> None:
    (said,) = check(f"data-path={tmp_path}/*.txt")
    assert "there is no dataset *.txt" in said
    (tmp_path / "a.txt").write_text("")
    assert check(f"data-path={tmp_path}/*.txt") == []
    (tmp_path / "run[1].idx").write_text("")
    assert check(f"data-path={tmp_path}/run[1]") == []


def test_a_missing_setting_says_who_needs_it(check: Check) -> None:
    said = check("tokenizer-type=GPT2BPETokenizer")
    assert any("error: merge-file: is required by tokenizer GPT2BPETokenizer" in each for each in said)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("warmup=1.5",), "warmup: must be from 0 to 1, not 1.5"),
        (
            ("engine=plain", "zero_optimization.stage=1"),
            "zero_optimization: belongs to engine deepspeed, and this config has engine: plain (set engine: deepspeed",
        ),
        (("monitors=[console, console]",), "monitors: names 'console' twice"),
        (("data-path=null",), "data-path: is required"),
        (("train_micro_batch_size_per_gpu=null",), "is required (or train_batch_size)"),
        (("optimizer.type=Fixed", "optimizer.params={}"), "everything:Fixed has no setting lr"),
        (("bf16.enabled=true", "fp16.enabled=true"), "enabled together with fp16"),
        (("save-interval=5",), "warning: save-interval: does nothing without save"),
        (("keep-last-n-checkpoints=5",), "warning: keep-last-n-checkpoints: does nothing without save"),
        (("save=out", "save-interval=5", "extra-save-iters=[101]"), "extra-save-iters: 101 is after train-iters 100"),
        (
            ("checkpoint.tag_validation=Sometimes",),
            "checkpoint.tag_validation: must be one of 'Ignore', 'Warn', 'Fail'",
        ),
        (
            ("checkpoint.parallel_write.pipeline_stage=false",),
            "note: checkpoint.parallel_write.pipeline_stage: changes no number of the run: every",
        ),
        (("checkpoint.tag_validation=Fail",), "note: checkpoint.tag_validation: changes no number of the run: ranks"),
        (("no-save-rng=true",), "note: no-save-rng: changes no number of the run: weights, dropout and the order"),
        (("use-cpu-initialization=true",), "note: use-cpu-initialization: changes nothing"),
        (
            ("tokenizer-type=GPT2BPETokenizer", "vocab-file=a", f"merge-file={300 * 'b'}"),
            "merge-file: there is no file",
        ),
        (("distributed-backend=mpi",), "distributed-backend: must be one of 'nccl', 'gloo', not 'mpi'"),
        (("comms_logger={enabled: true, prof_all: false}",), "error: comms_logger: times nothing"),
        (
            ("comms_logger={enabled: true, prof_all: false, prof_ops: [allreduce]}",),
            "comms_logger.prof_ops[0]: must be",
        ),
        (("num_gpus=2", "pipe-parallel-size=2", "flops_profiler.enabled=true"), "the engine cannot profile a pipeline"),
        (("comms_logger.verbose=true",), "warning: comms_logger.verbose: does nothing without comms_logger.enabled"),
        (
            ("flops_profiler.profile_step=3",),
            "warning: flops_profiler.profile_step: does nothing without flops_profiler.enabled",
        ),
        (
            ("checkpoint-activations=true", "activation_checkpointing.number_checkpoints=2"),
            "note: activation_checkpointing.number_checkpoints: does nothing without deepspeed-activation-checkp",
        ),
        (
            ("zero_optimization.stage=1", "prescale_gradients=true"),
            "prescale_gradients: has no effect on ZeRO's reduce-scatter",
        ),
        (
            ("optimizer.type=Rowwise", "device=cuda", "zero_optimization.stage=1", "fp16.enabled=true"),
            "zero_optimization.stage: 1 puts whole parameters of Rowwise on each rank, and fp16's loss scale",
        ),
        (
            ("optimizer.type=Rowwise", "zero_optimization={stage: 1, round_robin_gradients: true}"),
            "note: zero_optimization.round_robin_gradients: does nothing where ranks own whole parameters",
        ),
        (
            (
                "optimizer.type=Rowwise",
                "zero_optimization.stage=1",
                "bf16.enabled=true",
                "data_types.grad_accum_dtype=fp32",
            ),
            "data_types.grad_accum_dtype: fp32 does not go with a model in bf16 at ZeRO stage 1 (bf16)",
        ),
        (("sparse_gradients=true", "zero_optimization.stage=1"), "sparse_gradients: does not work at ZeRO stage 1"),
        (("sparse_gradients=true", "bf16.enabled=true"), "sparse_gradients: is for a model in fp32"),
        (
            ("sparse_gradients=true", "num_gpus=2", "model-parallel-size=2"),
            "sparse_gradients: works with data parallelism",
        ),
        (
            ("sparse_gradients=true", "num_gpus=2", "pipe-parallel-size=2"),
            "sparse_gradients: works with data parallelism",
        ),
        (
            ("sparse_gradients=true", "gradient_predivide_factor=2"),
            "sparse_gradients: DeepSpeed 0.19.8 does not divide",
        ),
        (("sparse_gradients=true", "num_gpus=1"), "note: sparse_gradients: sends nothing on one rank"),
        (("board.folder=x",), "warning: board: does nothing (set board.enabled: true)"),
        (("board={enabled: true, key: abc}",), "error: board.key: is a secret, which must not be in a config"),
        (("scheduler.type=Warmup",), "scheduler.type: no scheduler 'Warmup'; installed: WarmupLR"),
        (("scheduler={type: WarmupLR, params: {warmup_num_steps: 0}}",), "scheduler.params.warmup_num_steps: must be"),
        (("sequence-parallel=true",), "sequence-parallel: does nothing with model-parallel-size 1"),
        (("num_gpus=2", "model-parallel-size=4", "num-kv-heads=2"), "num-kv-heads: 2 cannot be divided by model-par"),
        (("num_gpus=2", "model-parallel-size=4"), "takes 4 x 1 = 4 ranks, and there are 2"),
        (("num_gpus=2", "pipe-parallel-size=4"), "error: pipe-parallel-size: a copy of the model takes 1 x 4"),
        (("num_gpus=3", "model-parallel-size=3"), "num-attention-heads: 4 cannot be divided by model-parallel-size 3"),
        (("num_gpus=3", "model-parallel-size=3"), "hidden-size: 64 cannot be divided by model-parallel-size 3"),
        (("num_gpus=3", "model-parallel-size=3"), "padded-vocab-size: 256 cannot be divided by model-parallel-size 3"),
        (
            ("num_gpus=4", "model-parallel-size=4", "padded-vocab-size=null", "make-vocab-size-divisible-by=1"),
            "make-vocab-size-divisible-by: 1 cannot be divided by model-parallel-size 4 (use 4, to which GPT-NeoX",
        ),
        (("detect_nvlink_pairs=true", "device=cpu"), "detect_nvlink_pairs: is for NVIDIA devices"),
        (("exclude=localhost:1", "num_gpus=1"), "num_gpus: contradicts exclude, which selects by name"),
        (("include=localhost:0", "num_nodes=1", "num_gpus=1"), "num_gpus: contradicts include"),
        (("plugins.require=[neox-none]",), "plugins.require: plugin neox-none is required and not installed"),
        (("optimizer.params.max_grad_norm=one",), "optimizer.params.max_grad_norm: must be a number"),
        (("max_grad_norm=0.5",), "max_grad_norm: unknown key; in optimizer.params it means gradient-clipping (set gr"),
        (("optimizer.max_grad_norm=0.5",), "optimizer.max_grad_norm: unknown key; in optimizer.params it means"),
        (
            ("optimizer.params.max_grad_norm=0.5", "gradient_clipping=1"),
            "optimizer.params.max_grad_norm: differs from gradient_clipping at --set",
        ),
    ],
)
def test_more_that_is_said(check: Check, sets: tuple[str, ...], said: str) -> None:
    assert any(said in line for line in check(*sets, machine=GPU))


def test_rules_run_where_other_sections_are_wrong(check: Check) -> None:
    found = check("hidden-size=x", "min-lr=1")
    assert len(found) == 2


@pytest.mark.parametrize(
    ("sets", "code"), [(("norm=none",), 3), (("plugins.require=[x]",), 3), (("norm=none", "seed=0"), 2)]
)
def test_exit_code(tmp_path: Path, text: str, catalog: Any, sets: tuple[str, ...], code: int) -> None:
    (tmp_path / "c.yml").write_text(text)
    with pytest.raises(ProblemsError) as caught:
        prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=CPU)
    assert caught.value.exit_code == code
    assert errors(caught.value.problems)


def test_of_a_file_that_cannot_be_read_no_rule_misses_a_key(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "more.yml").write_text("save-interval: 5\nseed: [\n")
    (tmp_path / "c.yml").write_text("save: out\n")
    with pytest.raises(ProblemsError) as caught:
        prepare_run([tmp_path / "c.yml", tmp_path / "more.yml"], catalog=catalog, machine=CPU)
    (problem,) = caught.value.problems
    assert "is not valid YAML" in problem.message
