"""Each of the 141 named features of the documents has a test that proves it, or a page that says why it is refused.

A feature is named as in the ledger: its kind, and its name. The name must stand in the file of the test, or the word
that `WORDS` has for it there.
"""

import ast
from functools import cache
from pathlib import Path

import pytest
from neox_reference.coverage import ledger

ROOT = Path(__file__).parents[2]
FEATURES = [(kind, name) for kind, names in ledger()["features"].items() for name in names]

E2E, UNIT = "tests/e2e/test_", "tests/unit/"
REFUSED = "docs/adr/0023-values-that-stay-refused.md"


def plugin(name: str, place: str) -> str:
    file, _, test = place.partition("::")
    return f"plugins/neox-{name}/tests/test_{file}.py::test_{test}"


HOST_ADAM = plugin("adam", "adam::50_steps_on_the_host_equal_the_recurrence_in_float64")
DEEPSPEED_RATES = plugin("lr", "schedulers::every_update_is_made_at_deepspeeds_rate")
GPT_NEOX_RATES = plugin("lr", "schedules::every_update_is_made_at_gpt_neoxs_rate")
HOSTS = plugin("launchers", "hosts::ranks_of_all_hosts_are_told_who_they_are_and_stop_in_good_order")
PARTITION = plugin("deepspeed", "partition::each_method_cuts_where_its_share_is_equal")
SHARES = f"{E2E}engine_effects.py::test_a_stage_leaves_each_rank_its_share"
LAYOUTS = f"{E2E}checkpoint_resume.py::test_every_layout_trains_the_same"
FILES = f"{E2E}checkpoint_resume.py::test_state_in_files_trains_the_same"
QUANTIZED = plugin("deepspeed", "engine_config::zero_optimization")  # a GPU's kernel: no test runs it
FP16 = plugin("deepspeed", "engine::fp16_equals_a_plain_loop_and_backs_off")
TYPES = f"{E2E}engine_effects.py::test_the_type_of_weights_and_matmuls"
ADDED = f"{E2E}engine_effects.py::test_the_type_in_which_gradients_add_up"
SPARSITY = f"{UNIT}config/test_layers.py::test_sparsity"
CHOICE = plugin("curriculum", "choice::steps_read_what_is_easy_enough_and_each_pass_all_of_it")
LENGTHS = plugin("curriculum", "choice::lengths_grow_and_nothing_is_chosen")
DIFFICULTY = plugin("curriculum", "schedule::difficulty_is_that_of_deepspeeds_scheduler")
ROUTING = plugin("gpt", "routing::a_routed_layer_sees_the_chosen_tokens_in_their_places")
REPORTED = f"{E2E}measured.py::test_files_of_monitors_hold_what_was_reported"
TIMES = f"{E2E}measured.py::test_timers_print_each_step_and_are_reported"
COMET_MODES = plugin("monitors", "blocks::comet_is_asked_for_an_experiment_that_is_there_or_a_new_one")
TAGS = f"{UNIT}plan/test_problems.py::test_more_that_is_said"
METRICS = plugin("autotuning", "trial::the_measured_steps_alone_count")
SOLVER = plugin("elasticity", "solve::ten_thousand_blocks_give_the_numbers_of_deepspeed")
RECOMPUTED = plugin("gpt", "recompute::loss_and_gradients_are_those_without")
LIKE_WEIGHTS = plugin("compression", "like_deepspeed::weights")
LIKE_RANGES = plugin("compression", "like_deepspeed::inputs_in_a_running_range")
LIKE_MASKS = plugin("compression", "like_deepspeed::masks")

PARTS = ("forward", "backward", "backward_inner", "backward_allreduce", "step")
PROOFS: dict[str, dict[str, str]] = {
    "optimizer": {
        "Adam": plugin("adam", "adam::50_steps_equal_the_closed_form_in_float64"),
        "AdamW": plugin("adam", "adam::classes_are_those_that_are_asked_for"),
        "Lamb": plugin("lamb", "lamb::50_steps_equal_the_paper_in_float64"),
        "OneBitAdam": plugin("onebit", "ranks::one_bit_adam_is_the_papers"),
        "ZeroOneAdam": plugin("onebit", "ranks::zero_one_adam_is_the_papers"),
        "OneBitLamb": plugin("onebit", "ranks::one_bit_lamb_is_the_papers"),
        "CPU_Adam": HOST_ADAM,
        "CPU_torch_adam": HOST_ADAM,
        "SM3": plugin("sm3", "sm3::50_steps_equal_the_paper_in_float64"),
        "torch.optim.<name>": plugin("torch-optim", "torch_optim::50_steps_equal_the_paper_in_float64"),
    },
    "norm": {
        "layernorm": plugin("norms", "norms::layernorm_is_the_closed_form"),
        "rmsnorm": plugin("norms", "norms::rmsnorm_adds_epsilon_to_the_root"),
        "scalenorm": plugin("norms", "norms::scalenorm_divides_by_the_length_or_the_epsilon"),
    },
    "pos-emb": {
        "learned": plugin("positions", "positions::learned_adds_the_row_of_the_position"),
        "sinusoidal": plugin("positions", "positions::sinusoidal_is_the_papers_table"),
        "rpe": plugin("positions", "positions::rpe_equals_t5s_decoder"),
        "none": plugin("positions", "positions::none_changes_nothing"),
    },
    "activation": {
        "gelu": plugin("activations", "activations::gelu_is_by_erf"),
        "openai-gelu": plugin("activations", "activations::openai_gelu_is_by_tanh"),
        "geglu": plugin("activations", "activations::gated_is_value_times_activated_gate"),
    },
    "param-sharing-style": dict.fromkeys(
        ("grouped", "spaced"), plugin("gpt", "gpt::layers_share_weights_in_the_documents_order")
    ),
    "lr-decay-style": dict.fromkeys(("constant", "linear", "cosine", "exponential"), GPT_NEOX_RATES),
    "scheduler": {
        "WarmupLR": DEEPSPEED_RATES,
        "WarmupDecayLR": DEEPSPEED_RATES,
        "1Cycle": plugin("lr", "schedulers::one_cycle_has_two_spellings"),
    },
    "launcher": dict.fromkeys(("pdsh", "openmpi", "mvapich"), HOSTS),
    "launch-file": {"hostfile": plugin("deepspeed", "hosts::hostfiles_as_deepspeed_reads_them")},
    "launch-syntax": {"NODE_SPEC[@NODE_SPEC ...]": plugin("deepspeed", "hosts::filters_as_deepspeed_reads_them")},
    "entry-point": {
        "deepy.py + YAML config": f"{E2E}gpt_neox_runs.py::test_ten_recipes_of_gpt_neox_train_resume_and_generate"
    },
    "distributed-backend": {"nccl": f"{UNIT}plan/test_cluster.py::test_ranks_by_devices"},
    "pipe-partition-method": dict.fromkeys(("parameters", "uniform", "type:[regex]"), PARTITION),
    "data-impl": {
        "infer": f"{UNIT}plan/test_resolve.py::test_infer_looks_at_the_first_bytes",
        "mmap": plugin("data-indexed", "mmap::reads_what_gpt_neox_wrote"),
    },
    "tokenizer": {"GPT2Tokenizer": plugin("tokenizers", "tokenizers::the_older_name_is_the_same")},
    "zero-stage": dict.fromkeys(("stage 0", "stage 1", "stage 2", "stage 3"), SHARES),
    "zero": {
        "ZeRO-Offload": LAYOUTS,
        "ZeRO-Infinity": FILES,
        "ZeRO++ hpZ": LAYOUTS,
        "ZeRO++ qwZ": QUANTIZED,
        "ZeRO++ qgZ": QUANTIZED,
    },
    "offload-device": {"cpu": LAYOUTS, "nvme": FILES},
    "precision": {
        "fp32": plugin("deepspeed", "engine::equals_a_plain_loop"),
        "fp16": FP16,
        "bf16": TYPES,
        "amp (Apex)": TYPES,
        "dynamic loss scaling": f"{E2E}loss_scale.py::test_scale_and_steps_after_an_overflow_on_one_rank",
    },
    "grad-accum-dtype": {"fp32": ADDED, "bf16": ADDED, "fp16": FP16},
    "sparsity": dict.fromkeys(("none", "all", "interspersed"), SPARSITY),
    "sparse-attention-mode": {
        each: plugin("sparse-attention", f"layouts::{each}")
        for each in ("dense", "fixed", "variable", "bigbird", "bslongformer")
    },
    "sparse-attention-direction": {
        "unidirectional": plugin("sparse-attention", "layouts::the_contract_is_kept_and_every_block_sees_itself"),
        "bidirectional": plugin("bert", "sparse::a_layer_is_dense_attention_under_the_mask_of_its_layout"),
    },
    "data-routing": {"random-LTD": ROUTING},
    "random-ltd-model-type": {"decoder": ROUTING, "encoder": REFUSED},
    "random-ltd-hidden-state-order": {"batch_seq_dim": ROUTING, "seq_batch_dim": plugin("curriculum", "rules::broken")},
    "curriculum": {"data-efficiency curriculum": CHOICE, "legacy seqlen curriculum": LENGTHS},
    "curriculum-schedule": {
        **dict.fromkeys(("fixed_linear", "fixed_root", "fixed_discrete"), DIFFICULTY),
        "custom": REFUSED,
    },
    "difficulty-type": {"value": CHOICE, "percentile": CHOICE},
    "clustering-type": {"schedule_based": CHOICE, "single_cluster": LENGTHS},
    "monitor": {
        "tensorboard": plugin("monitors", "blocks::tensorboard_reads_what_was_logged"),
        "wandb": plugin("monitors", "blocks::wandb_gets_one_run_with_every_value"),
        "comet": plugin("monitors", "blocks::comet_gets_an_experiment_with_a_value_of_each_name_every_so_many_samples"),
        "csv_monitor": plugin("monitors", "blocks::csv_files_have_deepspeeds_names_and_columns"),
    },
    "monitor-event": {
        "Train/Samples/train_loss": REPORTED,
        "Train/Samples/lr": REPORTED,
        "Train/Samples/loss_scale": plugin("monitors", "blocks::tensorboard_reads_what_was_logged"),
        "Train/Eigenvalues/ModelBlockParam_{i}": plugin("monitors", "blocks::tensorboard_reads_what_was_logged"),
        **{f"Train/Samples/elapsed_time_ms_{part}": TIMES for part in PARTS},
    },
    "comet-mode": dict.fromkeys(("get", "create", "get_or_create"), COMET_MODES),
    "tag-validation": dict.fromkeys(("Ignore", "Warn", "Fail"), TAGS),
    "checkpoint": {
        "universal checkpoint": f"{E2E}checkpoint_resume.py::test_another_layout_goes_on",
        "release checkpoint": f"{UNIT}checkpoint/test_checkpoint.py::test_finetune_takes_weights_only",
    },
    "autotuning-metric": dict.fromkeys(("latency", "throughput", "FLOPS"), METRICS),
    "autotuning-tuner": {"model_based": plugin("autotuning", "space::a_model_takes_first_what_it_expects_most_of")},
    "elasticity-version": {"0.1": SOLVER, "0.2": SOLVER},
    "comms-logging": {"deepspeed.comm.log_summary": f"{E2E}measured.py::test_collectives_are_counted_as_asked"},
    "profiler": {"flops profiler": f"{E2E}measured.py::test_the_profile_counts_every_product_once"},
    "activation-checkpointing": dict.fromkeys(("Megatron checkpointing", "DeepSpeed checkpointing"), RECOMPUTED),
    "compression-technique": {
        "layer_reduction": plugin("compression", "teacher::a_model_starts_with_layers_of_the_teacher"),
        "weight_quantization": plugin("compression", "training::distinct_values_of_trained_weights"),
        "activation_quantization": f"{E2E}compression.py::test_a_range_is_that_of_all_samples",
        "sparse_pruning": plugin("compression", "training::density_of_trained_weights"),
        "row_pruning": plugin("compression", "shrinking::related_modules_shrink"),
        "head_pruning": plugin("compression", "shrinking::related_modules_shrink"),
        "channel_pruning": REFUSED,
    },
    "pruning-method": {
        "l1": LIKE_MASKS,
        "topk": LIKE_MASKS,
        "snip_momentum": plugin("compression", "snip::masks_of_several_layers"),
    },
    "quantization-type": {"symmetric": LIKE_WEIGHTS, "asymmetric": LIKE_WEIGHTS},
    "rounding": {
        "nearest": LIKE_WEIGHTS,
        "stochastic": plugin("compression", "like_deepspeed::stochastic_rounding_is_without_bias"),
    },
    "range-calibration": {
        "dynamic": plugin("compression", "like_deepspeed::inputs_in_the_range_of_each_token"),
        "static": LIKE_RANGES,
    },
    "retrieval": {
        "ICT": plugin("retrieval", "model::loss_and_accuracies_by_hand"),
        "REALM": plugin("retrieval", "index::evaluate_counts_what_is_found"),
        "BERT": plugin("retrieval", "index::both_encoders_start_as_the_bert"),
        "FAISS block index": plugin("retrieval", "index::a_search_is_that_of_all_products"),
        "indexer job": plugin("retrieval", "index::vectors_are_those_of_the_blocks"),
    },
    "integration": {
        "ADLR autoresume": f"{E2E}autoresume.py::test_it_is_asked_at_the_interval_and_ends_two_ranks_with_a_checkpoint"
        "_that_resumes",
    },
    "data": {
        "tiered splits": plugin("causal-lm", "order::documents_are_split_as_gpt_neox_does"),
        "document-boundary resets": plugin("gpt", "documents::documents_of_a_sample_are_as_if_alone"),
    },
}
WORDS = {
    "OneBitAdam": "one_bit_adam",
    "ZeroOneAdam": "zero_one_adam",
    "OneBitLamb": "one_bit_lamb",
    "torch.optim.<name>": "torch.optim",
    "openai-gelu": "openai_gelu",
    "geglu": "gated",
    "NODE_SPEC[@NODE_SPEC ...]": "@",
    "deepy.py + YAML config": "train",
    "type:[regex]": "type:transformer",
    "stage 0": "plain",
    "stage 1": '"1"',
    "stage 2": '"2"',
    "stage 3": '"3"',
    "ZeRO-Offload": "zero-3-offloaded",
    "ZeRO-Infinity": "both-bf16",
    "ZeRO++ hpZ": "zero_hpz_partition_size",
    "ZeRO++ qwZ": "zero_quantized_weights",
    "ZeRO++ qgZ": "zero_quantized_gradients",
    "amp (Apex)": '"amp"',
    "dynamic loss scaling": "initial_scale_power",
    "random-LTD": "Routing",
    "decoder": "Routing",
    "batch_seq_dim": "Routing",
    "data-efficiency curriculum": "DataEfficiencyBlock",
    "legacy seqlen curriculum": "SeqlenBlock",
    "single_cluster": "SeqlenBlock",
    "Train/Samples/train_loss": "Train_Samples_train_loss",
    "Train/Samples/lr": '"lr"',
    "Train/Eigenvalues/ModelBlockParam_{i}": "ModelBlockParam_1",
    **{f"Train/Samples/elapsed_time_ms_{part}": f"elapsed_time_ms_{part}" for part in PARTS},
    "universal checkpoint": "to-1-rank",
    "release checkpoint": "finetune",
    "model_based": "predict",
    "nearest": "round_weight",
    "dynamic": "each_token",
    "deepspeed.comm.log_summary": "Comm. Op",
    "flops profiler": "Profile Summary",
    "Megatron checkpointing": "torch",
    "DeepSpeed checkpointing": "deepspeed",
    "ADLR autoresume": "adlr",
    "ICT": "block",
    "REALM": "evaluate",
    "BERT": "bert",
    "FAISS block index": "faiss",
    "indexer job": "vectors",
    "tiered splits": "split",
    "document-boundary resets": "reset_attention_mask",
}


@pytest.mark.parametrize(("kind", "name"), FEATURES)
def test_a_feature_has_a_test_or_a_reason(kind: str, name: str) -> None:
    place = PROOFS.get(kind, {}).get(name)
    assert place is not None, f"name the test that proves {kind}: {name} in {__file__}"
    file, _, test = place.partition("::")
    if kind == "retrieval" and not (ROOT / file).exists():
        pytest.skip("neox-retrieval is not there yet")
    assert not test or test in functions_of(file), f"{file} has no {test}"
    assert WORDS.get(name, name) in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not name {name}"


def test_no_other_feature_is_named() -> None:
    named = {(kind, name) for kind, names in PROOFS.items() for name in names}
    assert named == set(FEATURES)
    assert len(FEATURES) == 141


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
