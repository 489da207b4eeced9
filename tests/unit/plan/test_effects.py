"""What changing a key of a config changes in the plan, and where the effect of every other key is tested.

Keys are the top-level ones of the documents, as the ledger has them. Each that this version has is in one of the two
tables; those of `plugins/neox-gpt/tests/test_effects.py` are in the table there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neox_deepspeed.config.rules import offload
from neox_reference.coverage import ledger, states
from neox_reference.keys import all_keys

from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan

ROOT = Path(__file__).parents[3]
LEDGER = ledger()["parameters"]
BUILT = "plugins/neox-gpt/tests/test_effects.py"


def at(path: str) -> Callable[[RunPlan], Any]:
    """The value at a dotted path of the plan; None where a block is missing."""

    def read(plan: RunPlan) -> Any:
        value: Any = plan
        for part in path.split("."):
            if value is None:
                break
            value = value.get(part) if isinstance(value, dict) else getattr(value, part)
        return value

    return read


def warmup_at(step: int) -> Callable[[RunPlan], float]:
    """The share of the peak that a step's learning rate has within a linear warm-up."""
    return lambda plan: min(1.0, step / plan.optim.warmup_steps) if plan.optim.warmup_steps else 1.0


def batch(plan: RunPlan) -> tuple[int, int, int]:
    return plan.batch.micro_batch, plan.batch.gradient_accumulation, plan.batch.train_batch


def monitors(plan: RunPlan) -> set[str]:
    return {each.name for each in plan.monitors}


RECOMPUTE = ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true", "model-parallel-size=2")
USUAL = {"console", "jsonl"}
FP16 = ("fp16.enabled=true", "zero_optimization.stage=1")
STAGE_1 = ("zero_optimization.stage=1", "zero_optimization.reduce_scatter=false")
NO_SIZE = "train_micro_batch_size_per_gpu=null"
NO_MICRO = (NO_SIZE, "train_batch_size=32", "num_gpus=4")
ONE_BIT = tuple(f"optimizer.params.{each}" for each in ("freeze_step=5", "cuda_aware=false", "comm_backend_name=nccl"))
NO_TYPE = "optimizer.type=null"

# key -> (sets for both, set that changes it, what is looked at, before, after)
Effect = tuple[tuple[str, ...], tuple[str, ...], Callable[[RunPlan], Any], Any, Any]
EFFECTS: dict[str, Effect] = {
    "batch_size": (("num_gpus=1",), (NO_SIZE, "batch-size=3"), batch, (4, 1, 4), (3, 1, 3)),
    "train_batch_size": (
        ("num_gpus=2", "gradient_accumulation_steps=3"),
        (NO_SIZE, "train_batch_size=18"),
        batch,
        (4, 3, 24),
        (3, 3, 18),
    ),
    "train_micro_batch_size_per_gpu": (NO_MICRO, ("train_micro_batch_size_per_gpu=2",), batch, (8, 1, 32), (2, 4, 32)),
    "gradient_accumulation_steps": (NO_MICRO, ("gradient_accumulation_steps=2",), batch, (8, 1, 32), (4, 2, 32)),
    "data_path": ((), ("data-path=other",), at("data.prefix"), "none", "other"),
    "num_workers": ((), ("num-workers=0",), at("data.num_workers"), 2, 0),
    "seq_length": ((), ("seq-length=16",), at("model.seq_length"), 32, 16),
    "lr_decay_iters": ((), ("lr-decay-iters=50",), at("optim.decay_steps"), 100, 50),
    "min_lr": ((), ("min-lr=1e-5",), at("optim.min_lr"), 0.0, 1e-5),
    "warmup": (("warmup=0",), ("warmup=0.1",), warmup_at(5), 1.0, 0.5),
    "lr_decay_style": ((), ("lr-decay-style=cosine",), at("optim.schedule.name"), "linear", "cosine"),
    "gradient_clipping": ((), ("gradient_clipping=0",), at("engine.gradient_clipping"), 1.0, 0.0),
    "distributed_backend": (("num_gpus=2",), ("distributed-backend=gloo",), at("cluster.backend"), "nccl", "gloo"),
    "loss_scale": (FP16, ("loss-scale=128",), at("engine.fp16.loss_scale"), 0.0, 128.0),
    "loss_scale_window": (FP16, ("loss-scale-window=2",), at("engine.fp16.loss_scale_window"), 1000, 2),
    "min_scale": (FP16, ("min-scale=4",), at("engine.fp16.min_loss_scale"), 1, 4),
    "hysteresis": (FP16, ("hysteresis=3",), at("engine.fp16.hysteresis"), 2, 3),
    "fp32_allreduce": (STAGE_1, ("fp32-allreduce=true",), at("engine.communication_data_type"), None, "fp32"),
    "communication_data_type": (
        STAGE_1,
        ("communication_data_type=fp32",),
        at("engine.communication_data_type"),
        None,
        "fp32",
    ),
    "prescale_gradients": (STAGE_1, ("prescale_gradients=true",), at("engine.prescale_gradients"), False, True),
    "sparse_gradients": (
        ("no-weight-tying=true",),
        ("sparse_gradients=true",),
        at("model.sparse_gradients"),
        False,
        True,
    ),
    "gradient_predivide_factor": (
        STAGE_1,
        ("gradient_predivide_factor=2",),
        at("engine.gradient_predivide_factor"),
        1.0,
        2.0,
    ),
    "cpu_optimizer": ((), (NO_TYPE, "cpu-optimizer=true"), at("optim.optimizer.name"), "Adam", "CPU_Adam"),
    "onebitadam": (
        (),
        (NO_TYPE, "onebitadam=true", *ONE_BIT),
        at("optim.optimizer.name"),
        "Adam",
        "OneBitAdam",
    ),
    "cpu_torch_adam": ((), (NO_TYPE, "cpu_torch_adam=true"), at("optim.optimizer.name"), "Adam", "CPU_torch_adam"),
    "openai_gelu": ((), ("openai-gelu=true",), at("model.activation.name"), "gelu", "openai-gelu"),
    "onnx_safe": ((), ("onnx-safe=true",), at("model.activation.name"), "gelu", "erf-gelu"),
    "rpe_causal": ((), ("rpe=true", "rpe-causal=true"), at("model.position.name"), "learned", "rpe"),
    "steps_per_print": ((), ("steps_per_print=2",), at("engine.steps_per_print"), None, 2),
    "wall_clock_breakdown": ((), ("wall_clock_breakdown=true",), at("engine.wall_clock_breakdown"), False, True),
    "dump_state": ((), ("dump_state=true",), at("engine.dump_state"), False, True),
    "zero_optimization": ((), ("zero_optimization.stage=1",), at("engine.zero_optimization.stage"), 0, 1),
    "save": ((), ("save=out", "save-interval=5"), at("checkpoint.save"), None, "out"),
    "load": ((), ("load=in",), at("checkpoint.load"), None, "in"),
    "train_iters": ((), ("train-iters=7",), at("train.train_iters"), 100, 7),
    "model_parallel_size": ((), ("model-parallel-size=2",), at("batch.data_parallel"), 4, 2),
    "pipe_parallel_size": ((), ("pipe-parallel-size=2",), at("batch.data_parallel"), 4, 2),
    "pipe_partition_method": (
        ("pipe-parallel-size=2",),
        ("pipe-partition-method=uniform",),
        at("cluster.partition"),
        "type:transformer",
        "uniform",
    ),
    "apply_query_key_layer_scaling": (
        (),
        ("apply-query-key-layer-scaling=true",),
        lambda plan: (plan.model.query_key_layer_scaling, plan.model.attention_softmax_in_fp32),
        (False, False),
        (True, True),
    ),
    "mmap_warmup": ((), ("mmap-warmup=true",), at("data.backend.settings.mmap_warmup"), False, True),
    "scheduler": (
        (),
        ("scheduler={type: WarmupLR, params: {warmup_max_lr: 1e-3}}",),
        at("optim.schedule.name"),
        "linear",
        "WarmupLR",
    ),
    "amp": ((), ("amp.enabled=true",), at("precision.autocast"), None, "bf16"),
    "bf16": ((), ("bf16.enabled=true",), at("engine.bf16.enabled"), None, True),
    "data_types": ((), ("data_types.grad_accum_dtype=fp32",), at("engine.data_types.grad_accum_dtype"), None, "fp32"),
    "aio": (
        ("zero_optimization={stage: 3, offload_optimizer: {device: nvme, nvme_path: /tmp}}", "optimizer.type=CPU_Adam"),
        ("aio.queue_depth=16",),
        at("engine.aio.queue_depth"),
        8,
        16,
    ),
    "comms_logger": ((), ("comms_logger.enabled=true",), at("engine.comms_logger.prof_all"), None, True),
    "flops_profiler": (
        (),
        ("flops_profiler={enabled: true, profile_step: 5}", "wall_clock_breakdown=true"),
        at("engine.flops_profiler.profile_step"),
        None,
        5,
    ),
    "checkpoint_activations": ((), ("checkpoint-activations=true",), at("model.recompute.layers"), None, 1),
    "checkpoint_num_layers": (RECOMPUTE, ("checkpoint-num-layers=2",), at("model.recompute.layers"), 1, 2),
    "distribute_checkpointed_activations": (
        ("checkpoint-activations=true",),
        ("distribute-checkpointed-activations=true",),
        at("model.recompute.distribute"),
        False,
        True,
    ),
    "deepspeed_activation_checkpointing": (
        RECOMPUTE,
        ("deepspeed-activation-checkpointing=false",),
        at("model.recompute.deepspeed"),
        True,
        False,
    ),
    "partition_activations": (
        RECOMPUTE,
        ("partition-activations=true",),
        at("model.recompute.partition"),
        False,
        True,
    ),
    "contiguous_checkpointing": (
        (*RECOMPUTE, "partition-activations=true"),
        ("contiguous-checkpointing=true",),
        at("model.recompute.contiguous"),
        False,
        True,
    ),
    "checkpoint_in_cpu": (RECOMPUTE, ("checkpoint-in-cpu=true",), at("model.recompute.in_cpu"), False, True),
    "synchronize_each_layer": (
        RECOMPUTE,
        ("synchronize-each-layer=true",),
        at("model.recompute.synchronize"),
        False,
        True,
    ),
    "profile_backward": (RECOMPUTE, ("profile-backward=true",), at("model.recompute.profile"), False, True),
    "activation_checkpointing": (
        RECOMPUTE,
        ("activation_checkpointing.cpu_checkpointing=true",),
        at("model.recompute.in_cpu"),
        False,
        True,
    ),
    "sparsity": ((), ("sparsity=all", "sparse_attention.block=16"), at("model.layout_of_layer"), (), (0, 0)),
    "tensorboard_dir": ((), ("tensorboard-dir=x",), monitors, USUAL, {*USUAL, "tensorboard"}),
    "tensorboard": ((), ("tensorboard.enabled=true",), monitors, USUAL, {*USUAL, "tensorboard"}),
    "csv_monitor": ((), ("csv_monitor.enabled=true",), monitors, USUAL, {*USUAL, "csv_monitor"}),
    "detect_nvlink_pairs": (
        ("model-parallel-size=2",),
        ("detect_nvlink_pairs=true",),
        at("cluster.nvlink_pairs"),
        False,
        True,
    ),
    "log_dir": ((), ("log-dir=x",), at("launcher.settings.log_dir"), None, "x"),
    "disable_allgather": (
        STAGE_1[:1],
        ("disable-allgather=true",),
        at("engine.zero_optimization.allgather_partitions"),
        True,
        False,
    ),
    "launcher": ((), ("launcher=pdsh",), at("launcher.name"), "local", "pdsh"),
    "num_gpus": ((), ("num_gpus=2",), at("cluster.world_size"), 4, 2),
    "local_rank": ((), ("local_rank=1",), at("cluster.local_rank"), None, 1),
}

UNIT, PLUGINS = "tests/unit/", "plugins/neox-"
ASKED = "test_it_is_asked_at_the_interval_and_ends_two_ranks_with_a_checkpoint_that_resumes"
AUTORESUME = f"tests/e2e/test_autoresume.py::{ASKED}"
CHECKPOINT, CLUSTER = f"{UNIT}checkpoint/test_checkpoint.py::", f"{UNIT}plan/test_cluster.py::"
MODEL, DOCUMENTS = f"{PLUGINS}gpt/tests/test_gpt.py::", f"{PLUGINS}gpt/tests/test_documents.py::"
HOSTS = f"{CLUSTER}test_ranks_of_a_hostfile"
TOLD = f"{PLUGINS}launchers/tests/test_hosts.py::test_ranks_of_all_hosts_are_told_who_they_are_and_stop_in_good_order"
RUN_IN_ORDER = f"{UNIT}run/test_loop.py::test_the_order_of_a_run"
LAYOUTS = "tests/e2e/test_layouts.py::test_equals_one_process"
TOKENIZERS = f"{PLUGINS}tokenizers/tests/test_tokenizers.py::"
RETRIEVAL = f"{PLUGINS}retrieval/tests/"
POSITIONS = f"{PLUGINS}positions/tests/test_positions.py::"
REPORT = f"{UNIT}run/test_report.py::"
CHOICE = f"{PLUGINS}curriculum/tests/test_choice.py::"
BLOCKS = f"{PLUGINS}monitors/tests/test_blocks.py::"
LEGACY = "plugins/neox-gpt-neox/tests/test_legacy.py::"
KERNELS = f"{PLUGINS}triton/tests/interpreted/test_in_a_model.py::"

# key -> the test that sees its effect where it takes effect
PLACES: dict[str, str] = {
    "hostfile": HOSTS,
    "include": HOSTS,
    "exclude": HOSTS,
    "num_nodes": HOSTS,
    "master_addr": TOLD,
    "master_port": TOLD,
    "use_cpu_initialization": LAYOUTS,  # weights are always drawn on the CPU
    "deepspeed_mpi": f"{LEGACY}test_what_has_no_successor_is_an_error_with_the_reason",
    "lazy_mpu_init": f"{LEGACY}test_what_has_no_successor_is_an_error_with_the_reason",
    "scaled_upper_triang_masked_softmax_fusion": f"{KERNELS}test_every_form_of_the_model",
    "scaled_masked_softmax_fusion": f"{KERNELS}test_any_mask",
    "bias_gelu_fusion": f"{KERNELS}test_every_form_of_the_model",
    "bias_dropout_fusion": f"{KERNELS}test_every_form_of_the_model",
    "DDP_impl": LAYOUTS,  # gradients are always averaged by the engine
    "rpe_max_distance": f"{POSITIONS}test_rpe_beyond_the_farthest_distance_is_one_bucket",
    "apply_residual_connection_post_layernorm": f"{MODEL}test_post_norm_residual_is_the_normalised_tensor",
    "attention_softmax_in_fp32": f"{MODEL}test_softmax_in_fp32_is_nearer_to_the_truth",
    "fp16_lm_cross_entropy": f"{MODEL}test_narrow_loss_reaches_the_loss",
    "reset_position_ids": f"{DOCUMENTS}test_each_switch_acts_alone",
    "reset_attention_mask": f"{DOCUMENTS}test_each_switch_acts_alone",
    "eod_mask_loss": f"{DOCUMENTS}test_eod_leaves_the_loss",
    "vocab_file": f"{TOKENIZERS}test_any_tokenizer_json_is_read",
    "merge_file": f"{TOKENIZERS}test_training_joins_the_most_frequent_pairs_first",
    "tokenizer_type": f"{TOKENIZERS}test_ids_of_any_text_are_those_of_the_reference",
    **dict.fromkeys(("adlr_autoresume", "adlr_autoresume_interval"), AUTORESUME),
    "eigenvalue": "tests/e2e/test_eigenvalue.py::test_it_is_that_of_the_explicit_hessian",
    "mask_prob": f"{PLUGINS}bert/tests/test_masks.py::test_a_share_of_the_text_is_predicted",
    "short_seq_prob": f"{PLUGINS}bert/tests/test_samples.py::test_short_samples_are_as_many_as_asked_for",
    "ict_head_size": f"{RETRIEVAL}test_model.py::test_its_size_is_told_on_the_host",
    "ict_load": f"{RETRIEVAL}test_index.py::test_vectors_are_those_of_the_blocks",
    "bert_load": f"{RETRIEVAL}test_index.py::test_both_encoders_start_as_the_bert",
    "titles_data_path": f"{RETRIEVAL}test_blocks.py::test_a_block_starts_with_the_title_of_its_document",
    "query_in_block_prob": f"{RETRIEVAL}test_blocks.py::test_a_share_of_the_blocks_keeps_its_query",
    "use_one_sent_docs": (
        f"{RETRIEVAL}test_blocks.py::test_documents_of_one_sentence_are_trained_on_where_they_are_asked_for"
    ),
    "report_topk_accuracies": f"{RETRIEVAL}test_model.py::test_loss_and_accuracies_by_hand",
    "faiss_use_gpu": f"{RETRIEVAL}test_index.py::test_faiss_on_a_gpu_needs_one",
    "block_data_path": f"{RETRIEVAL}test_index.py::test_the_same_blocks_have_the_same_numbers_again",
    "indexer_batch_size": f"{RETRIEVAL}test_index.py::test_the_same_blocks_have_the_same_numbers_again",
    "indexer_log_interval": f"{RETRIEVAL}test_index.py::test_the_same_blocks_have_the_same_numbers_again",
    "split": "plugins/neox-causal-lm/tests/test_order.py::test_documents_are_split_as_gpt_neox_does",
    "data_impl": f"{UNIT}plan/test_resolve.py::test_infer_looks_at_the_first_bytes",
    "optimizer": f"{PLUGINS}adam/tests/test_adam.py::test_classes_are_those_that_are_asked_for",
    "fp16": f"{PLUGINS}deepspeed/tests/test_engine.py::test_fp16_equals_a_plain_loop_and_backs_off",
    "zero_allow_untested_optimizer": f"{UNIT}plan/test_rules.py::test_rule",
    "eval_interval": RUN_IN_ORDER,
    "eval_iters": f"{REPORT}test_validation_is_the_mean_of_its_batches",
    "exit_interval": f"{UNIT}run/test_loop.py::test_exit_interval",
    "log_interval": f"{REPORT}test_logs_at_its_interval_and_at_the_last_step_the_mean_since_the_last_log",
    "save_interval": RUN_IN_ORDER,
    "keep_last_n_checkpoints": f"{UNIT}checkpoint/test_save.py::test_old_checkpoints_go",
    "checkpoint": f"{CHECKPOINT}test_what_a_checkpoint_holds",
    "no_save_optim": f"{CHECKPOINT}test_what_was_not_saved_must_not_be_wanted",
    "no_save_rng": f"{CHECKPOINT}test_what_was_not_saved_must_not_be_wanted",
    "no_load_optim": f"{CHECKPOINT}test_no_load_optim_and_no_load_rng",
    "no_load_rng": f"{CHECKPOINT}test_no_load_optim_and_no_load_rng",
    "finetune": f"{CHECKPOINT}test_finetune_takes_weights_only",
    "override_lr_scheduler": f"{CHECKPOINT}test_whose_schedule_goes_on",
    "use_checkpoint_lr_scheduler": f"{CHECKPOINT}test_whose_schedule_goes_on",
    "wandb": f"{BLOCKS}test_wandb_gets_one_run_with_every_value",
    "comet": f"{BLOCKS}test_comet_gets_an_experiment_with_a_value_of_each_name_every_so_many_samples",
    "elasticity": f"{PLUGINS}elasticity/tests/test_rules.py::test_show_prints_batch_and_numbers_of_ranks",
    "compression_training": f"{PLUGINS}compression/tests/test_training.py::test_distinct_values_of_trained_weights",
    "autotuning": f"{PLUGINS}autotuning/tests/test_tune.py::test_tune_tries_each_stage_and_writes_the_best",
    "data_efficiency": f"{CHOICE}test_steps_read_what_is_easy_enough_and_each_pass_all_of_it",
    "curriculum_learning": f"{CHOICE}test_lengths_grow_and_nothing_is_chosen",
    "sparse_attention": f"{PLUGINS}sparse-attention/tests/test_layouts.py::test_fixed",
}


@pytest.fixture(scope="module")
def plugins() -> Any:
    return load_plugins()


@pytest.fixture
def plan(tmp_path: Path, text: str, plugins: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunPlan]:
    (tmp_path / "libaio.h").touch()
    (tmp_path / "tensorboard.py").touch()  # a monitor's package is looked for, and not imported
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(offload, "INCLUDES", (str(tmp_path),))

    def _plan(*sets: str) -> RunPlan:
        """The plan of the base config and sets, of which the last of a key counts."""
        (tmp_path / "c.yml").write_text(text)
        last = {each.partition("=")[0]: each for each in ("data-path=none", "data-impl=mmap", *sets)}
        config = [tmp_path / "c.yml"]
        return prepare_run(config, [*last.values()], catalog=plugins, machine=Machine(4, 4), start=False).plan

    return _plan


@pytest.mark.parametrize("key", EFFECTS)
def test_changing_a_key_changes_the_plan(plan: Callable[..., RunPlan], key: str) -> None:
    common, changed, look, before, after = EFFECTS[key]
    assert look(plan(*common)) == before
    assert look(plan(*common, *changed)) == after


@pytest.mark.parametrize(("key", "place"), PLACES.items())
def test_the_place_of_an_effect_is_there(key: str, place: str) -> None:
    file, _, name = place.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_key_of_the_documents_has_its_effect_tested(plugins: Any) -> None:
    built = (ROOT / BUILT).read_text(encoding="utf-8")
    state = states(all_keys(plugins.registry))
    missing = [
        key
        for key in LEDGER
        if "." not in key
        and state.get(key) != "known only"
        and key not in EFFECTS
        and key not in PLACES
        and f'    "{key}": (' not in built
    ]
    assert missing == []
